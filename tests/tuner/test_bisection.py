"""Crossovers among finalists, and that bisection finds what a sweep over every integer finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from toy import Toy

from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_tuner.bisection import Crossover
from megatune_tuner.bisection import Finals
from megatune_tuner.bisection import cells_between
from megatune_tuner.bisection import crossovers
from megatune_tuner.bisection import winners

SIMT, MMA, STOCK = (Config.of(name, {}) for name in ("simt", "mma", "stock"))
SHAPE = Toy().workload({"n": 1536, "k": 7168}, 1).at(0)
LISTED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

Times = Callable[[int], Mapping[str, float]]
"""Microseconds of each variant at so many tokens."""


def finals(times: Mapping[str, float], *, noise: float = 0.0, seed: object = 0, count: int = 31) -> Finals:
    """Interleaved samples: each round slows all alike, and each sample has noise of its own."""
    rng = random.Random(str(seed))
    rounds = [1 + abs(rng.gauss(0, 0.02)) for _ in range(count)]
    return {
        Config.of(name, {}): [us * slow * (1 + rng.gauss(0, noise)) for slow in rounds] for name, us in times.items()
    }


def cells(times: Times, tokens: Sequence[int], *, seed: int = 0, **more: Any) -> dict[Workload, Finals]:
    return {SHAPE.at(count): finals(times(count), seed=(seed, count), **more) for count in tokens}


def bisect(times: Times, usable: Callable[[Workload], bool] = lambda _: True, **more: Any) -> dict[Workload, Finals]:
    """Measured cells when nothing is left to measure."""
    measured = cells(times, LISTED, **more)
    while between := cells_between(measured, usable):
        for cell, (low, high) in between.items():
            assert low in measured
            assert high in measured
            assert low.tokens < cell.tokens < high.tokens
            assert cell not in measured
        measured |= cells(times, [cell.tokens for cell in between], **more)
    return measured


def crossing(at: float, slope: float = 0.5) -> Times:
    """mma overtakes simt at so many tokens; the ratio of their times is that power of the tokens."""
    return lambda tokens: {"simt": 2.0 * (tokens / at) ** slope, "mma": 2.0}


def between(found: Crossover) -> tuple[str, str, int, int]:
    return (found.below, found.above, found.low, found.high)


@pytest.mark.parametrize("last", [1, 2, 5, 8, 63, 64, 65, 300, 511])
def test_a_step_is_found_to_one_token(last: int) -> None:
    measured = bisect(lambda tokens: {"simt": 1.0 if tokens <= last else 1.2, "mma": 1.1})
    (found,) = crossovers(measured)
    assert between(found) == ("simt", "mma", last, last + 1)
    assert last < found.tokens < last + 1
    assert len(measured) <= len(LISTED) + 8


@pytest.mark.parametrize("at", [1.5, 2.5, 5.5, 63.5, 64.0, 300.5])
def test_where_the_difference_passes_through_nothing_there_is_a_tie(at: float) -> None:
    (found,) = crossovers(bisect(crossing(at)))
    assert found.low < at < found.high
    # One per cent of the time is two per cent of the tokens here; to that comes what is not narrowed, and one token.
    assert found.low >= min(at / 1.02 / (1 + 1 / 32), at / 1.02 - 1)
    assert found.high <= max(at * 1.02 * (1 + 1 / 31), at * 1.02 + 1)
    assert found.tokens == pytest.approx(at, rel=0.005)


def test_every_change_of_sides_is_followed() -> None:
    def times(tokens: int) -> Mapping[str, float]:
        return {"simt": 1.0 if tokens < 5 or 100 < tokens < 300 else 2.0, "mma": 1.5}

    assert [between(found) for found in crossovers(bisect(times))] == [
        ("simt", "mma", 4, 5),
        ("mma", "simt", 100, 101),
        ("simt", "mma", 299, 300),
    ]


def test_the_fastest_of_all_counts_where_it_is_a_baseline() -> None:
    def times(tokens: int) -> Mapping[str, float]:
        return {"simt": 1.0 + tokens / 50, "mma": 3.0 + tokens / 150, "stock": 2.0 + tokens / 100}

    # mma overtakes simt at 150 tokens, but there the baseline is between them: from 100 to 300 it is the fastest.
    found = crossovers(bisect(times))
    assert [(one.below, one.above, round(one.tokens)) for one in found] == [
        ("simt", "stock", 100),
        ("simt", "mma", 150),
        ("stock", "mma", 300),
    ]


def test_a_baseline_that_is_never_the_fastest_does_not_matter() -> None:
    def times(tokens: int) -> Mapping[str, float]:
        return {"simt": 1.0, "mma": 1.0 + tokens / 100, "stock": 1.5}

    assert crossovers(bisect(times)) == []
    assert len(bisect(times)) == len(LISTED)


def test_noise_ends_it_and_the_tie_has_an_interval() -> None:
    measured = bisect(crossing(93, slope=0.05), noise=0.01)
    (found,) = crossovers(measured)
    ties = [tokens for tokens in found.ratios if found.low < tokens < found.high]
    assert ties
    assert ties[0] - found.low <= max(1, found.low / 32)
    assert found.high - ties[-1] <= max(1, ties[-1] / 32)
    assert found.low < 93 < found.high
    assert found.low < found.tokens < found.high


def test_what_cannot_be_measured_is_left_out() -> None:
    recorded = {64, 70, 75, 90, 120, 128}
    measured = bisect(crossing(80.5), usable=lambda workload: workload.tokens in recorded)
    (found,) = crossovers(measured)
    assert between(found) == ("simt", "mma", 75, 90)
    # The one nearest to the middle of 64 and 128, and then what is nearest to the middle of what is left.
    assert {cell.tokens for cell in measured} - set(LISTED) == {90, 75}


def test_where_a_variant_fails_nothing_is_compared() -> None:
    def times(tokens: int) -> Mapping[str, float]:
        both = crossing(80.5)(tokens)
        return {"simt": both["simt"]} if tokens == 96 else both

    measured = bisect(times)
    assert {cell.tokens for cell in measured} - set(LISTED) == {96}
    (found,) = crossovers(measured)
    assert between(found) == ("simt", "mma", 64, 128)
    measured[SHAPE.at(96)] = {}
    assert cells_between(measured, lambda _: True) == {}


def test_too_few_pairs_are_a_tie() -> None:
    assert crossovers(cells(crossing(80.5), LISTED, count=5)) == []


def test_shapes_are_kept_apart() -> None:
    other = Toy().workload({"n": 64, "k": 7168}, 1).at(0)
    measured: dict[Workload, Finals] = {
        SHAPE.at(64): finals({"simt": 1.0, "mma": 2.0}),
        SHAPE.at(128): finals({"simt": 1.0, "mma": 2.0}),
        other.at(64): finals({"simt": 1.0, "mma": 2.0}),
        other.at(128): finals({"simt": 3.0, "mma": 2.0}),
    }
    (found,) = crossovers(measured)
    assert found.shape == other
    assert cells_between(measured, lambda _: True) == {other.at(96): (other.at(64), other.at(128))}


def test_winners_are_the_best_of_each_variant_and_finals_say_more_than_the_search() -> None:
    a1, a2, a3, a4, a5 = (Config.of("simt", {"rows": rows}) for rows in range(5))
    b1 = Config.of("mma", {"tile": 16})
    ranked = [a1, a2, b1, a3, a4, a5]
    assert winners({}, ranked) == [a1, a2, a3, b1]
    assert winners({a1: [3.0], a4: [2.0], b1: [1.0], STOCK: [0.5]}, ranked) == [b1, a4, a1, a2]
    assert winners({}, []) == []


@settings(deadline=None, max_examples=30)
@given(at=st.floats(1.5, 400), slope=st.floats(0.15, 2.0), noise=st.floats(0.0, 0.01), seed=st.integers(0, 2**32))
def test_bisection_finds_what_a_sweep_finds(at: float, slope: float, noise: float, seed: int) -> None:
    """Within one token or 5 %, for at most a quarter of the sweep's measurements; each measures with its own noise."""
    times = crossing(at, slope)
    measured = bisect(times, noise=noise, seed=seed)
    swept = cells(times, range(1, 513), noise=noise, seed=seed + 1)
    assert len(measured) <= len(swept) / 4
    found, sweep = crossovers(measured), crossovers(swept)
    assert found
    assert sweep
    # Noise can make several of one, near to each other.
    for one in found:
        assert abs(one.tokens - at) <= max(1, 0.05 * at)
        assert any(abs(one.tokens - other.tokens) <= max(1, 0.05 * other.tokens) for other in sweep)
    for other in sweep:
        assert any(abs(one.tokens - other.tokens) <= max(1, 0.05 * other.tokens) for one in found)
