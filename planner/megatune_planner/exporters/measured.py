"""What an export to a runtime may rest on: figures that hardware has shown."""

from __future__ import annotations

from collections.abc import Sequence

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

_NOT_EVIDENCE = (Provenance.EMULATED, Provenance.PREDICTED)


def provenances(shapes: Sequence[ShapePlan]) -> set[Provenance]:
    """Of everything that the shapes' bands rest on."""
    return {each for shape in shapes for band in shape.bands for point in band.points for each in point.provenance}


def require_measured(plan: Plan, shapes: Sequence[ShapePlan], exporter: str) -> None:
    """:raises MegatuneError: when the plan counts figures as evidence that no hardware has shown."""
    counted = set(plan.content.options.provenances) | provenances(shapes)
    bad = [each for each in _NOT_EVIDENCE if each in counted]
    if bad:
        raise MegatuneError(
            f"{exporter}: the plan counts {' and '.join(bad)} figures as evidence, which no runtime may serve from: "
            "make it again with --provenance measured"
        )


def require_links(plan: Plan, exporter: str) -> None:
    """:raises MegatuneError: when the plan holds for ranks that shared a GPU."""
    if plan.content.target.hardware["links"] == "emulated":
        raise MegatuneError(
            f"{exporter}: the plan holds for ranks that were emulated on one GPU: measure it on a group of GPUs"
        )


def require_shown(plan: Plan, exporter: str) -> None:
    """Of everything that the plan has.

    :raises MegatuneError: when any of it is what no hardware has shown.
    """
    require_measured(plan, [shape for each in plan.content.operators for shape in each.shapes], exporter)
    require_links(plan, exporter)


def notes(shapes: Sequence[ShapePlan], own: tuple[str, ...]) -> tuple[str, ...]:
    """An exporter's own notes, and what the evidence needs said."""
    if Provenance.IMPORTED not in provenances(shapes):
        return own
    return ("Some of it rests on imported figures, which others measured elsewhere: see provenance.", *own)
