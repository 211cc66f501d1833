"""The crossovers of every shape that a database or a plan knows, and where measuring would narrow them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.errors import NothingMeasured
from megatune_planner.crossover_schema import Crossover
from megatune_planner.crossovers import crossovers
from megatune_planner.crossovers import refinement
from megatune_planner.curves import best_of_each
from megatune_planner.evidence import gather
from megatune_planner.evidence import paired_samples
from megatune_planner.evidence import unasked
from megatune_planner.plan import Plan
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens


class ShapeCrossovers(Part):
    """The crossovers of one shape."""

    operator: str
    """Of the shape."""
    shape: str
    """The dims as a key, sorted by name."""
    dtype: str
    """Of the operands."""
    world: int
    """Ranks that take part in one launch."""
    routing: str
    """How tokens are spread over experts; ``none`` where there are none."""
    revision: str
    """Digest of the source of the kernels that were measured; empty where that is not known."""
    crossovers: tuple[Crossover, ...]
    """Of every two variants, and in a plan of those that serve in neighbouring bands."""
    measure_next: tuple[Tokens, ...]
    """Tokens whose measurement narrows them the most; empty where nothing is left to narrow."""


def of_plan(plan: Plan) -> list[ShapeCrossovers]:
    """Those of a plan's shapes, in its order."""
    return [
        ShapeCrossovers(
            operator=operator.name,
            shape=shape.shape,
            dtype=shape.dtype,
            world=shape.world,
            routing=shape.routing,
            revision=shape.revision,
            crossovers=shape.crossovers,
            measure_next=refinement(shape.crossovers),
        )
        for operator in plan.content.operators
        for shape in operator.shapes
    ]


def of_measurements(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenances: Sequence[Provenance],
    baselines: Mapping[str, Sequence[str]],
) -> list[ShapeCrossovers]:
    """Those of everything that was measured on one target in one regime, whether a plan would gain from it or not.

    :param target: digest.
    :param provenances: what counts, the most trusted first.
    :param baselines: names by operator; operators that are not among them are left out.
    :raises NothingMeasured: when no shape has two variants that were measured at the same tokens.
    """
    found = list(_surveyed(session, target, regime, provenances, baselines))
    if not found:
        there = [row.measurements for row in queries.targets(session, counted=False) if row.digest == target]
        more = unasked((provenance for each in there for provenance in each), provenances)
        raise NothingMeasured(
            f"no two variants were measured at the same tokens on target {target} in regime {regime}, of provenance "
            f"{' or '.join(provenances)}{more}"
        )
    return found


def _surveyed(
    session: Session,
    target: str,
    regime: Regime,
    provenances: Sequence[Provenance],
    baselines: Mapping[str, Sequence[str]],
) -> Iterator[ShapeCrossovers]:
    evidence = gather(session, target=target, regime=regime, provenances=provenances, baselines=baselines, expresses={})
    samples = paired_samples(session, evidence)
    for shape in evidence:
        workload = shape.workload
        best = {tokens: best_of_each(measured) for tokens, measured in shape.at.items()}
        crossing = crossovers(workload, best, (), samples, baselines=baselines[workload.operator])
        if crossing:
            yield ShapeCrossovers(
                operator=workload.operator,
                shape=workload.shape,
                dtype=workload.dtype,
                world=workload.world,
                routing=workload.routing,
                revision=shape.revision,
                crossovers=crossing,
                measure_next=refinement(crossing),
            )
