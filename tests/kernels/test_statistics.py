"""Medians and ratios with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_kernels.statistics import interval_rank
from megatune_kernels.statistics import median_interval
from megatune_kernels.statistics import median_intervals
from megatune_kernels.statistics import paired_ratio

times = st.floats(min_value=0.1, max_value=1e6)


def test_ranks_are_those_of_the_binomial_tables() -> None:
    # Ranks counted from 1 in published tables of the sign test at 5 %, two-sided: n=6: 1, 10: 2, 15: 4, 20: 6, 30: 10.
    assert [interval_rank(count) + 1 for count in (6, 10, 15, 20, 30)] == [1, 2, 4, 6, 10]
    assert [interval_rank(count) for count in (1, 5, 9, 100)] == [0, 0, 1, 39]


def test_few_samples_give_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_interval([5.0]) == (5.0, 5.0, 5.0)


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@given(st.lists(times, min_size=1, max_size=40))
def test_interval_holds_the_median(samples: list[float]) -> None:
    found = median_interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == np.median(samples)


@given(st.lists(st.lists(times, max_size=12), max_size=8))
def test_rows_agree_with_one_by_one(sets: list[list[float]]) -> None:
    flat = np.array([sample for samples in sets for sample in samples])
    offsets = np.cumsum([0, *map(len, sets)])
    found = median_intervals(flat, offsets)
    for row, samples in zip(found, sets, strict=True):
        if samples:
            assert tuple(row) == median_interval(samples)
        else:
            assert np.isnan(row).all()


def test_the_interval_covers_the_true_median() -> None:
    draws = np.random.default_rng(0).lognormal(size=(4000, 15))
    rows = median_intervals(draws.ravel(), np.arange(0, 4000 * 15 + 1, 15))
    assert ((rows[:, 1] <= 1.0) & (rows[:, 2] >= 1.0)).mean() >= 0.95


def test_pairs_cancel_what_both_had() -> None:
    drift = np.linspace(0.9, 1.1, 20)
    assert paired_ratio(10.1 * drift, 10 * drift) == pytest.approx((1.01, 1.01, 1.01))
    assert paired_ratio([2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0] * 6) == (7.0, 2.0, 12.0)


@pytest.mark.parametrize(("mine", "theirs"), [(6, 7), (5, 5), (0, 0)])
def test_what_is_no_pair(mine: int, theirs: int) -> None:
    with pytest.raises(ValueError, match="pairs need two sets"):
        paired_ratio([1.0] * mine, [1.0] * theirs)
