"""Medians and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_tuner.statistics import interval_rank
from megatune_tuner.statistics import summarize
from megatune_tuner.statistics import summarize_rows

times = st.floats(min_value=0.1, max_value=1e6)


def test_ranks_are_those_of_the_binomial_tables() -> None:
    # Ranks counted from 1 in published tables of the sign test at 5 %, two-sided: n=6: 1, 10: 2, 15: 4, 20: 6, 30: 10.
    assert [interval_rank(count) + 1 for count in (6, 10, 15, 20, 30)] == [1, 2, 4, 6, 10]


def test_few_samples_give_their_range() -> None:
    assert summarize([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert summarize([5.0]) == (5.0, 5.0, 5.0)


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


@given(st.lists(times, min_size=1, max_size=40))
def test_interval_holds_the_median(samples: list[float]) -> None:
    found = summarize(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == np.median(samples)


@given(st.lists(st.lists(times, max_size=12), max_size=8))
def test_rows_agree_with_one_by_one(sets: list[list[float]]) -> None:
    flat = np.array([sample for samples in sets for sample in samples])
    offsets = np.cumsum([0, *map(len, sets)])
    found = summarize_rows(flat, offsets)
    for row, samples in zip(found, sets, strict=True):
        if samples:
            assert tuple(row) == summarize(samples)
        else:
            assert np.isnan(row).all()


def test_the_interval_covers_the_true_median() -> None:
    draws = np.random.default_rng(0).lognormal(size=(4000, 15))
    rows = summarize_rows(draws.ravel(), np.arange(0, 4000 * 15 + 1, 15))
    assert ((rows[:, 1] <= 1.0) & (rows[:, 2] >= 1.0)).mean() >= 0.95
