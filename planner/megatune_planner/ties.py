"""What measurements say of each other: faster, slower, or a tie; and which of several ties to take.

Two measurements are compared by the ratio of their times and its 95 % interval. Where both were interleaved in one
session of finalists, sample i pairs with sample i: whatever slowed the device for a moment slowed both, so the interval
of the median of the ratios is far narrower than the two intervals. Otherwise their own intervals have to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

from numpy.typing import NDArray

from megatune_db.records import APART
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_kernels.canonical import canonical_json
from megatune_kernels.space import Value
from megatune_kernels.statistics import MIN_PAIRS
from megatune_kernels.statistics import paired_ratio

Samples = Mapping[int, NDArray[Any]]
"""Samples in microseconds by id of the measurement, shape (samples,)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config (or baseline) as measured at one workload: what may serve there, and the evidence for it."""

    measurement_id: int
    variant: str
    params: Mapping[str, Value]
    config: str
    """Digest of variant and params."""
    stage: Stage
    session: str
    median_us: float
    low_us: float
    high_us: float
    """95 % interval of the median."""
    provenance: Provenance
    behind: tuple[Candidate, ...] = ()
    """What it was made of, where it stands for several routings: one of each."""

    @property
    def measured(self) -> tuple[Candidate, ...]:
        """The measurements in it: itself, where it stands for nothing else."""
        return self.behind or (self,)


class Comparison(NamedTuple):
    """Time of one candidate over the time of another, with its 95 % interval."""

    ratio: float
    low: float
    high: float
    paired: bool


def compare(candidate: Candidate, other: Candidate, samples: Samples) -> Comparison:
    """Time of ``candidate`` over that of ``other``.

    Sample by sample where both are finalists of one session with at least ``MIN_PAIRS`` samples each; otherwise from
    the two intervals, whose ends bound the ratio.
    """
    both_final = candidate.stage is Stage.FINAL and other.stage is Stage.FINAL
    if both_final and candidate.session == other.session and not candidate.session.startswith(APART):
        mine, theirs = samples.get(candidate.measurement_id), samples.get(other.measurement_id)
        if mine is not None and theirs is not None and len(mine) == len(theirs) >= MIN_PAIRS:
            return Comparison(*paired_ratio(mine, theirs), paired=True)
    return Comparison(
        candidate.median_us / other.median_us,
        candidate.low_us / other.high_us,
        candidate.high_us / other.low_us,
        paired=False,
    )


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that the others are compared with.

    That is the fastest, unless a search found it and its interval reaches a finalist's: the least of many noisy
    medians is too low, the finalists' are measured again, and a figure that can be paired is worth more.

    :raises ValueError: when there are none.
    """
    fastest = min(candidates, key=_speed)
    finalists = [c for c in candidates if c.stage is Stage.FINAL and c.low_us <= fastest.high_us]
    return min(finalists, key=_speed) if finalists else fastest


def tie_set(candidates: Sequence[Candidate], samples: Samples, slack: float = 0.0) -> tuple[Candidate, ...]:
    """The candidates that are not significantly slower than the best, the best included, the fastest first.

    :param slack: share of the best's time up to which a difference does not count, however significant.
    """
    if not candidates:
        return ()
    first = best(candidates)
    ties = [c for c in candidates if c is first or compare(c, first, samples).low <= 1 + slack]
    return tuple(sorted(ties, key=_speed))


def simplicity(candidate: Candidate) -> tuple[int, int, str]:
    """Sorts the simpler config first.

    Simpler is, in this order: fewer parameters switched on (a value other than 0, 1, False or ``none``); the smaller
    product of its numbers, so less of everything; and the first in the order of its canonical JSON, so that the
    order is total.
    """
    values = candidate.params.values()
    switched_on = sum(value is True or value not in (0, 1, "none") for value in values)
    product = math.prod(value for value in values if isinstance(value, int) and value > 1)
    return (switched_on, product, canonical_json([candidate.variant, dict(candidate.params)]))


def _speed(candidate: Candidate) -> tuple[float, str]:
    return (candidate.median_us, candidate.config)
