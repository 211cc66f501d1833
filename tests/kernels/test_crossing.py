"""Sides, their changes, and where to measure next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatune_kernels.crossing import next_tokens
from megatune_kernels.crossing import side
from megatune_kernels.crossing import side_changes
from megatune_kernels.statistics import Interval


@pytest.mark.parametrize(
    ("ratio", "least", "expected"),
    [
        ((1.2, 1.1, 1.3), 0.01, 1),
        ((0.8, 0.7, 0.9), 0.01, -1),
        ((1.2, 0.9, 1.5), 0.01, 0),
        ((1.005, 1.004, 1.006), 0.01, 0),
        ((0.995, 0.994, 0.996), 0.01, 0),
        ((1.005, 1.004, 1.006), 0.0, 1),
        ((1.0, 1.0, 1.0), 0.0, 0),
    ],
)
def test_a_side_is_significant_and_worth_something(
    ratio: tuple[float, float, float], least: float, expected: int
) -> None:
    assert side(Interval(*ratio), least) == expected


def test_ties_lie_inside_a_change() -> None:
    assert side_changes({1: 1, 8: 1, 16: 0, 32: -1, 64: -1}) == [(8, 32)]
    assert side_changes({1: 0, 2: 1, 4: 0}) == []
    assert side_changes({4: -1, 1: 1, 2: -1, 3: 1}) == [(1, 2), (2, 3), (3, 4)]
    assert side_changes({}) == []


def test_what_to_measure_next() -> None:
    assert next_tokens({64: 1, 128: -1}) == [96]
    assert next_tokens({64: 1, 96: 0, 128: -1}) == [80, 112]
    assert next_tokens({64: 1, 94: 1, 96: 0, 98: -1}) == []
    assert next_tokens({5: 1, 6: -1}) == []
    assert next_tokens({1: 1, 512: 1}) == []
    assert next_tokens({1: 1, 4: -1, 16: 1}) == [2, 10]


@given(st.integers(1, 511), st.integers(0, 30))
def test_halving_ends_at_the_change(last: int, half_width: int) -> None:
    """The first variant is faster up to ``last`` tokens, the second above, and the noise hides what is near it."""

    def truth(tokens: int) -> int:
        if half_width and abs(tokens - last) < half_width:
            return 0
        return 1 if tokens <= last else -1

    sides = {tokens: truth(tokens) for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
    measured = len(sides)
    while more := next_tokens(sides):
        assert not set(more) & set(sides)
        sides |= {tokens: truth(tokens) for tokens in more}
    assert len(sides) - measured <= 16
    full = side_changes({tokens: truth(tokens) for tokens in range(1, 513)})
    found = side_changes(sides)
    if not half_width:
        assert found == full
    else:
        for (low, high), (true_low, true_high) in zip(found, full, strict=True):
            assert low <= true_low <= low + max(1, low / 32)
            assert high - max(1, high / 31) <= true_high <= high
