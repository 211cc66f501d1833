"""Where two variants change sides over tokens, and which tokens to measure next to say it more narrowly.

Searching narrows a crossover while it measures, planning reports it: both take the same sides from the same ratios.
A ratio is the second variant's time over the first's, as ``statistics.paired_ratio`` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from megatune_kernels.statistics import Interval

LEAST_DIFFERENCE = 0.01
"""Share of the slower one's time below which a difference is noise, however narrow its interval: another session,
with other addresses and clocks, does not repeat it."""
RESOLUTION = 1 / 32
"""Share of its tokens to which an end of a crossover is narrowed where a tie lies beside it: half the 5 % within which
a crossover should be known, and a bisection's last steps would only say how wide the noise is."""


def side(ratio: Interval, least: float = LEAST_DIFFERENCE) -> int:
    """Which variant is faster: 1 the first, -1 the second, 0 neither.

    Neither is where the interval holds 1, or where the difference is under ``least``.

    :param ratio: time of the second over time of the first.
    :param least: share of the slower one's time that the faster one has to save.
    """
    if ratio.low > 1 and 1 / ratio.median <= 1 - least:
        return 1
    if ratio.high < 1 and ratio.median <= 1 - least:
        return -1
    return 0


def side_changes(sides: Mapping[int, int]) -> list[tuple[int, int]]:
    """Neighbouring tokens at which different variants are faster, ascending; only ties lie between the two."""
    decided = [tokens for tokens in sorted(sides) if sides[tokens]]
    return [(low, high) for low, high in pairwise(decided) if sides[low] != sides[high]]


def next_tokens(sides: Mapping[int, int]) -> list[int]:
    """The tokens whose measurement narrows each change of sides the most, ascending; empty when nothing is left to do.

    Each change is halved until it is one token wide. Where a tie was measured inside, the noise hides the rest, and
    what is left is where the tie begins and ends: both are halved to ``RESOLUTION``.

    :param sides: by measured tokens, as ``side`` gives them.
    """
    found = []
    for low, high in side_changes(sides):
        ties = [tokens for tokens in sorted(sides) if low < tokens < high]
        if ties:
            gaps = [(low, ties[0]), (ties[-1], high)]
            found += [(a + b) // 2 for a, b in gaps if b - a > max(1, RESOLUTION * a)]
        elif high - low > 1:
            found.append((low + high) // 2)
    return found
