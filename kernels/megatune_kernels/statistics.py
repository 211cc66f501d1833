"""The figures of samples: a median, its interval, and how two sets compare. Searching and planning use the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MIN_PAIRS = 6
"""Fewer pairs cannot reach the confidence, whatever their values: 1 - 2^(1-5) is 0.9375."""


class Interval(NamedTuple):
    """Median of the samples and the interval that holds the true median with ``CONFIDENCE``, in the samples' unit."""

    median: float
    low: float
    high: float


def least_count(confidence: float) -> int:
    """The fewest samples whose whole range holds the true median with this confidence: 1 - 2^(1-n) reaches it."""
    return math.ceil(1 - math.log2(1 - confidence))


@cache
def interval_rank(count: int, confidence: float = CONFIDENCE) -> int:
    """Which order statistic, counted from 0, bounds the interval from below; its mirror image bounds it from above.

    The number of samples under the true median is binomial with p = 1/2, whatever their distribution, so
    [x(r), x(n-1-r)] holds it with probability 1 - 2 P(B <= r); the result is the greatest r that keeps this at
    ``confidence`` (David and Nagaraja, Order Statistics, section 7.1). Fewer than ``least_count`` samples cannot reach
    it, e.g. fewer than six 95 %: then the interval is their whole range, which holds the median with probability
    1 - 2^(1-n).
    """
    tail = 0.0
    rank = 0
    for below in range(count):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > 1 - confidence:
            break
        rank = below
    return rank


def median_interval(samples: Sequence[float] | NDArray[Any], confidence: float = CONFIDENCE) -> Interval:
    """Median and interval of one set of samples.

    :raises ValueError: when there are none.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64)).tolist()
    count = len(ordered)
    if not count:
        raise ValueError("no samples: they have no median")
    rank = interval_rank(count, confidence)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Interval(middle, ordered[rank], ordered[count - 1 - rank])


def median_intervals(samples: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.float64]:
    """``median_interval`` of many sets at once.

    :param samples: every set's samples one after the other, shape (samples,).
    :param offsets: where each set begins and the last one ends, ascending, shape (sets + 1,).
    :returns: median, low and high of each set, NaN for an empty one, shape (sets, 3).
    """
    counts = np.diff(offsets)
    found = np.full((len(counts), 3), np.nan)
    for count in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == count)
        sets = samples[offsets[:-1][rows][:, None] + np.arange(count)].astype(np.float64)
        sets.sort(axis=1)
        rank = interval_rank(count)
        found[rows, 0] = (sets[:, (count - 1) // 2] + sets[:, count // 2]) / 2
        found[rows, 1] = sets[:, rank]
        found[rows, 2] = sets[:, count - 1 - rank]
    return found


def paired_ratio(
    numerator: Sequence[float] | NDArray[Any],
    denominator: Sequence[float] | NDArray[Any],
    confidence: float = CONFIDENCE,
) -> Interval:
    """Median of the ratios of two interleaved sets, sample i over sample i, with its interval.

    Whatever slowed the device for a moment slowed both samples of a pair, so this interval is far narrower than that
    of a ratio of two medians. An end above 1 says that the numerator's are the greater, with ``confidence``.

    :param numerator: positive samples, shape (pairs,).
    :param denominator: as many, in the same unit.
    :raises ValueError: when the sets differ in length or are shorter than ``MIN_PAIRS``.
    """
    if len(numerator) != len(denominator) or len(numerator) < MIN_PAIRS:
        raise ValueError(
            f"pairs need two sets of the same length, at least {MIN_PAIRS}: not {len(numerator)} and {len(denominator)}"
        )
    ratios = np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64)
    return median_interval(ratios, confidence)
