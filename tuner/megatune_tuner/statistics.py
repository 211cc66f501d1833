"""The figures of a set of samples: their median and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """Median of the samples and the interval that holds the true median with ``CONFIDENCE``, in the samples' unit."""

    median: float
    low: float
    high: float


@cache
def interval_rank(count: int) -> int:
    """Which order statistic, counted from 0, bounds the interval from below; its mirror image bounds it from above.

    The number of samples under the true median is binomial with p = 1/2, whatever their distribution, so
    [x(r), x(n-1-r)] holds it with probability 1 - 2 P(B <= r); the result is the greatest r that keeps this at
    ``CONFIDENCE`` (David and Nagaraja, Order Statistics, section 7.1). Fewer than six samples cannot reach 95 %: then
    the interval is their whole range, which holds the median with probability 1 - 2^(1-n).
    """
    tail = 0.0
    rank = 0
    for below in range(count):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank = below
    return rank


def summarize(samples: Sequence[float]) -> Summary:
    """Median and interval of one set of samples.

    :raises ValueError: when there are none.
    """
    ordered = sorted(samples)
    count = len(ordered)
    if not count:
        raise ValueError("no samples to summarize")
    rank = interval_rank(count)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Summary(middle, ordered[rank], ordered[count - 1 - rank])


def summarize_rows(samples: NDArray[Any], offsets: NDArray[Any]) -> NDArray[np.float64]:
    """``summarize`` of many sets at once.

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
