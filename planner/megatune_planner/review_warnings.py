"""What a reviewer should look at first: where a plan's figures are weaker than they look."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Literal

from megatune_db.queries import TargetRow
from megatune_db.queries import VerificationRow
from megatune_db.records import Provenance
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import BandPoint
from megatune_planner.band_schema import Latency
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.rendering import crossover_text
from megatune_planner.rendering import tokens_text
from megatune_planner.rendering import unrepeatable_where
from megatune_planner.routings import routing_suffix
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part
from megatune_planner.verifying.standing import verification_findings

THIN_SHARE = 0.02
"""A gain below this share of the baseline's time is thin, whatever its interval."""

Kind = Literal[
    "crossover",
    "verification",
    "toolchain",
    "repeatability",
    "provenance",
    "margin",
    "prediction",
    "pairing",
    "gap",
]


class ReviewWarning(Part):
    """One reason to look closer."""

    kind: Kind
    """``crossover``: suspect or contested; ``verification``: the last one did not show that it holds; ``toolchain``:
    the target's, or the kernels, have changed since, and no verification shows that it holds all the same;
    ``repeatability``: other seeds decide otherwise, beyond ties; ``provenance``: not measured on the target itself;
    ``margin``: a gain that is hardly one; ``prediction``: tokens between measured ones;
    ``pairing``: compared across sessions; ``gap``: measured, and not enough to decide."""
    where: str
    """Operator, shape and tokens; empty for the whole plan."""
    text: str
    """What is the matter, in one line."""
    evidence: tuple[MeasurementId, ...] = ()
    """The measurements in question."""


def review_warnings(
    plan: Plan, targets: Sequence[TargetRow] = (), verifications: Sequence[VerificationRow] = ()
) -> list[ReviewWarning]:
    """What is weak in a plan, the worst first.

    :param targets: of the database, in the order in which they were first seen.
    :param verifications: of this plan, the newest first.
    """
    found = verification_findings(plan, targets, verifications)
    shapes = [(operator.name, shape) for operator in plan.content.operators for shape in operator.shapes]
    return [
        *(each for name, shape in shapes for each in _crossovers(name, shape)),
        *(ReviewWarning(kind=each.kind, where="", text=each.text) for each in found),
        *_repeatability(plan),
        *_provenance(plan),
        *(each for name, shape in shapes for each in _margins(name, shape)),
        *(each for name, shape in shapes for each in _pairing(name, shape)),
        *(each for name, shape in shapes for each in _predictions(name, shape)),
        *(each for name, shape in shapes for each in _gaps(name, shape)),
    ]


def _crossovers(operator: str, shape: ShapePlan) -> Iterator[ReviewWarning]:
    for crossover in shape.crossovers:
        if crossover.suspect or crossover.kind == "contested":
            yield ReviewWarning(
                kind="crossover",
                where=_where(operator, shape),
                text=crossover_text(crossover),
                evidence=crossover.evidence,
            )


def _repeatability(plan: Plan) -> Iterator[ReviewWarning]:
    found = plan.content.repeatability
    for band in () if found is None else found.bands:
        yield ReviewWarning(kind="repeatability", where=unrepeatable_where(band), text=band.reason)


def _provenance(plan: Plan) -> Iterator[ReviewWarning]:
    counts = plan.content.coverage.measurements
    others = {kind: count for kind, count in counts.items() if kind is not Provenance.MEASURED and count}
    if others:
        spelled = " and ".join(f"{count} {kind}" for kind, count in others.items())
        yield ReviewWarning(
            kind="provenance",
            where="",
            text=f"{spelled} of {sum(counts.values())} measurements in evidence: not measured on this target",
        )


def _margins(operator: str, shape: ShapePlan) -> Iterator[ReviewWarning]:
    for band in shape.bands:
        for point in band.points:
            if band.decision.kind == "config" and _is_thin(point):
                overlap = point.latency.high_us >= point.baseline_latency.low_us
                yield ReviewWarning(
                    kind="margin",
                    where=f"{_where(operator, shape)}, {_tokens(point.tokens)}",
                    text=(
                        f"saves {point.gain:.1%} of {point.baseline}: {_interval(point.latency)} against "
                        f"{_interval(point.baseline_latency)} µs{', and the intervals overlap' if overlap else ''}"
                    ),
                    evidence=point.evidence,
                )


def _is_thin(point: BandPoint) -> bool:
    return point.gain < THIN_SHARE or (not point.paired and point.latency.high_us >= point.baseline_latency.low_us)


def _pairing(operator: str, shape: ShapePlan) -> Iterator[ReviewWarning]:
    points = [
        point for band in shape.bands if band.decision.kind == "config" for point in band.points if not point.paired
    ]
    if points:
        yield ReviewWarning(
            kind="pairing",
            where=_where(operator, shape),
            text=f"not interleaved with the baseline at {', '.join(str(p.tokens) for p in points)} tokens",
            evidence=tuple(sorted({each for point in points for each in point.evidence})),
        )


def _predictions(operator: str, shape: ShapePlan) -> Iterator[ReviewWarning]:
    bands = [band for band in shape.bands if band.decision.kind == "config" and band.predicted_share > 0]
    if bands:
        yield ReviewWarning(
            kind="prediction",
            where=_where(operator, shape),
            text=f"predicted between measured tokens, from their neighbours: {'; '.join(map(_predicted, bands))}",
            evidence=tuple(sorted({each for band in bands for point in band.points for each in point.evidence})),
        )


def _predicted(band: Band) -> str:
    return f"{band.predicted_share:.0%} of band {tokens_text(band)}"


def _gaps(operator: str, shape: ShapePlan) -> Iterator[ReviewWarning]:
    for gap in shape.gaps:
        yield ReviewWarning(kind="gap", where=f"{_where(operator, shape)}, {_tokens(gap.tokens)}", text=gap.reason)


def _where(operator: str, shape: ShapePlan) -> str:
    world = f" world {shape.world}" if shape.world > 1 else ""
    return f"{operator} {shape.shape} {shape.dtype}{world}{routing_suffix(shape)}"


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _interval(latency: Latency) -> str:
    return f"{latency.median_us:.2f} ({latency.low_us:.2f}-{latency.high_us:.2f})"
