"""Crossovers: where one variant gives way to another, between two neighbouring bands.

A crossover is a pair of measured tokens with the boundary in between, not a single number: the estimate is read off
the two curves, and a campaign that measures the tokens in between narrows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from megatune_planner.plan import Band
from megatune_planner.plan import BandPoint
from megatune_planner.plan import Crossover
from megatune_planner.plan import Curve
from megatune_planner.plan import CurvePoint


def crossovers(bands: Sequence[Band], curves: Sequence[Curve]) -> tuple[Crossover, ...]:
    """The boundaries between neighbouring measured bands whose variants differ; stock's variant is its baseline."""
    by_name = {curve.name: curve for curve in curves if curve.kind != "exporter"}
    measured = [band for band in bands if band.points]
    found = []
    for lower, upper in itertools.pairwise(measured):
        lo, hi = lower.points[-1], upper.points[0]
        below, above = _serving(lower, lo), _serving(upper, hi)
        if below != above:
            found.append(_crossover(by_name[below], by_name[above], lo.tokens, hi.tokens))
    return tuple(found)


def _serving(band: Band, point: BandPoint) -> str:
    return band.decision.variant if band.decision.kind == "config" else point.baseline


def _crossover(below: Curve, above: Curve, lo: int, hi: int) -> Crossover:
    ends = [(below.at(tokens), above.at(tokens)) for tokens in (lo, hi)]
    ratio_lo, ratio_hi = (_ratio(*end) for end in ends)
    evidence = tuple(sorted({point.evidence for end in ends for point in end if point is not None}))
    return Crossover(
        below=below.name,
        above=above.name,
        tokens_lo=lo,
        tokens_hi=hi,
        ratio_lo=ratio_lo,
        ratio_hi=ratio_hi,
        estimate_tokens=_estimate(lo, hi, ratio_lo, ratio_hi),
        suspect=_steps(lo, hi, ends),
        evidence=evidence,
    )


def _ratio(below: CurvePoint | None, above: CurvePoint | None) -> float | None:
    if below is None or above is None:
        return None
    return above.latency.median_us / below.latency.median_us


def _estimate(lo: int, hi: int, ratio_lo: float | None, ratio_hi: float | None) -> float | None:
    """Where the logarithm of the ratio passes zero, on the straight line between the two ends."""
    if ratio_lo is None or ratio_hi is None or not ratio_hi < 1 < ratio_lo:
        return None
    rise = math.log(ratio_lo) - math.log(ratio_hi)
    return round(lo + (hi - lo) * math.log(ratio_lo) / rise, 2)


def _steps(lo: int, hi: int, ends: Sequence[tuple[CurvePoint | None, CurvePoint | None]]) -> bool:
    """Whether the ratio steps where two smooth curves would cross.

    The work of a decode operation grows at most in proportion to its tokens and never shrinks, so from lo to hi each
    curve grows by a factor between 1 and hi/lo, and the ratio of two changes by no more than hi/lo either way. The
    intervals are allowed for.
    """
    (below_lo, above_lo), (below_hi, above_hi) = ends
    if below_lo is None or above_lo is None or below_hi is None or above_hi is None:
        return False
    least_fall = (above_lo.latency.low_us / below_lo.latency.high_us) / (
        above_hi.latency.high_us / below_hi.latency.low_us
    )
    return least_fall > hi / lo
