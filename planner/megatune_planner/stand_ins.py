"""What configs are compared with where no baseline can run: on ranks that share a GPU.

The libraries that serve sums over ranks today want a GPU for every rank, so that a campaign of emulated ranks has no
baseline. Its variants can be compared with each other all the same: the best config of the slowest one stands in, and
what a plan then gains is what the choice of the variant is worth. No runtime is ever served from such figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatune_db.records import Provenance
from megatune_planner.band_schema import BandPoint
from megatune_planner.evidence import Measured
from megatune_planner.evidence import ShapeEvidence
from megatune_planner.plan import ShapePlan
from megatune_planner.ties import Candidate
from megatune_planner.ties import best

WHY = "no baseline runs on ranks that share a GPU"


def to_beat(measured: Measured) -> list[Candidate]:
    """The baselines at one number of tokens, or what stands in for them; none where nothing can be compared."""
    if measured.baselines or measured.provenance is not Provenance.EMULATED:
        return measured.baselines
    by_variant: dict[str, list[Candidate]] = {}
    for candidate in measured.candidates:
        by_variant.setdefault(candidate.variant, []).append(candidate)
    if len(by_variant) < 2:
        return []
    bests = [best(mine) for mine in by_variant.values()]
    return [max(bests, key=lambda candidate: (candidate.median_us, candidate.variant))]


def stands_in(evidence: ShapeEvidence, points: Sequence[BandPoint]) -> bool:
    """Whether a band with these points is compared with something else than baselines."""
    return any(not evidence.at[point.tokens].baselines for point in points)


def compared_with(shapes: Sequence[ShapePlan], baselines: Sequence[str]) -> tuple[str, ...]:
    """The baselines of an operator, or the names of what stood in for them at all of its shapes."""
    names = {name for shape in shapes for name in shape.fastest_baselines}
    return tuple(baselines) if names & {*baselines} else tuple(sorted(names))
