"""Where two curves meet: their sides at each measured place, and what follows from them.

A place is a number of tokens, or of bytes where a figure says no more: the rules are the same. Nothing is said of
places outside the measured ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal
from typing import NamedTuple

import numpy as np

from megatune_kernels.crossing import side_changes
from megatune_kernels.statistics import Interval

Kind = Literal["point", "interval", "contested", "never"]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two curves at one measured place."""

    at: int
    side: int
    """1: the first is faster, -1: the second, 0: neither, as ``megatune_kernels.crossing.side`` has it."""
    ratio: Interval | None = None
    """Time of the second over time of the first; None where only the winner is known."""
    first_us: Interval | None = None
    second_us: Interval | None = None
    """Latencies; None where only the winner or the ratio is known."""


class Meeting(NamedTuple):
    """How two curves meet."""

    kind: Kind
    swapped: bool
    """Whether the second curve is the faster one at the small end, so that the first is the one above."""
    decided: bool
    """Whether either is faster anywhere; where it is not, the two tie throughout."""
    low: int
    high: int
    """The last place before, and the first place after all changes of sides; for ``never`` the first and the last."""
    first: int
    last: int
    """The smallest and the largest place at which both were measured."""
    estimate: float | None
    """Where the two are equally fast, for a single change whose ratios are known."""
    changes: tuple[tuple[int, int], ...]
    """Neighbouring places with different sides; only ties were measured between the two."""
    tied: tuple[int, ...]
    """Places from ``low`` to ``high`` where neither is faster."""
    unmeasured: tuple[tuple[int, int], ...]
    """Runs of places inside the changes that were not measured, both ends included."""
    suspect: str
    """Why a change cannot be a meeting of two curves; empty where nothing speaks against it."""


def meet(points: Sequence[Compared]) -> Meeting:
    """How the curves meet, from every place at which both were measured.

    One change of sides is a ``point`` when every place in between was measured (what lies between are ties, then),
    else an ``interval``; several are ``contested``, and none is ``never``.

    :raises ValueError: when there are no places.
    """
    points = sorted(points, key=lambda point: point.at)
    if not points:
        raise ValueError("curves that were not measured at the same place cannot meet")
    changes = side_changes({point.at: point.side for point in points})
    first_side = next((point.side for point in points if point.side), 0)
    low, high = (changes[0][0], changes[-1][1]) if changes else (points[0].at, points[-1].at)
    gaps = [
        (a.at + 1, b.at - 1)
        for a, b in pairwise(points)
        if b.at - a.at > 1 and any(lo <= a.at and b.at <= hi for lo, hi in changes)
    ]
    kind: Kind = "never"
    if len(changes) > 1:
        kind = "contested"
    elif changes:
        kind = "interval" if gaps else "point"
    return Meeting(
        kind=kind,
        swapped=first_side < 0,
        decided=first_side != 0,
        low=low,
        high=high,
        first=points[0].at,
        last=points[-1].at,
        estimate=_estimate([p for p in points if low <= p.at <= high]) if len(changes) == 1 else None,
        changes=tuple(changes),
        tied=tuple(point.at for point in points if not point.side and low <= point.at <= high),
        unmeasured=tuple(gaps),
        suspect=_suspect(points, changes),
    )


def _estimate(points: Sequence[Compared]) -> float | None:
    """Where a straight line through the differences passes 0, certain ones counting for more; for two places, where
    the line between them does.

    Latencies are nearly straight over tokens, and so is their difference. It is taken from the ratio, which is known
    better than either; where nothing but the ratio is known, its logarithm stands for it.
    """
    ratios = [point.ratio for point in points if point.ratio is not None]
    if len(ratios) < len(points):
        return None
    places = np.array([point.at for point in points], dtype=np.float64)
    medians = np.array([ratio.median for ratio in ratios])
    widths = np.maximum(np.log([ratio.high / ratio.low for ratio in ratios]), 1e-4)
    firsts = np.array([point.first_us.median for point in points if point.first_us is not None])
    if len(firsts) == len(points):
        differences, widths = (medians - 1) * firsts, widths * firsts
    else:
        differences = np.log(medians)
    # Scaled, because a place can be a number of bytes, whose square would leave nothing of the slope.
    slope, level = np.polyfit(places / places[-1], differences, 1, w=1 / widths)
    if slope == 0:
        return None
    # The ends have different sides, so a line that does not pass 0 between them fits nothing.
    found = float(-level / slope * places[-1])
    return round(found, 2) if places[0] <= found <= places[-1] else None


def _suspect(points: Sequence[Compared], changes: Sequence[tuple[int, int]]) -> str:
    """Two smooth curves cross without a step.

    The work of a decode operation grows at most in proportion to its tokens and never shrinks, so between two places
    a curve grows by a factor from 1 to that of the places, and the ratio of two changes by no more than that either
    way. The intervals are allowed for.
    """
    for before, after in pairwise(points):
        if not any(low <= before.at and after.at <= high for low, high in changes):
            continue
        work = after.at / before.at
        where = f"from {before.at} to {after.at}, {work:.2f} times the work,"
        if before.ratio is not None and after.ratio is not None:
            step = max(before.ratio.low / after.ratio.high, after.ratio.low / before.ratio.high)
            if step > work:
                return f"{where} the ratio of the two steps {step:.2f} times"
        for early, late in ((before.first_us, after.first_us), (before.second_us, after.second_us)):
            if early is not None and late is not None and late.low / early.high > work:
                return f"{where} one of the two takes {late.low / early.high:.2f} times as long"
    return ""
