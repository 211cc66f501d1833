from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import CUBLAS
from plan_examples import candidate
from plan_examples import mma
from plan_examples import simt

from megatune_kernels.space import Config
from megatune_planner.bands import Standing
from megatune_planner.bands import assign
from megatune_planner.bands import find_bands
from megatune_planner.bands import weights_of

A, B, C = simt(), mma(), simt(block=256)


def standing(
    tokens: int,
    baseline_us: float,
    times: Mapping[Config, float],
    preferred: frozenset[str] = frozenset(),
    *,
    spread: float = 0.004,
    tie_slack: float = 0.001,
) -> Standing:
    return Standing.of(
        tokens,
        candidate(CUBLAS, baseline_us, spread=spread),
        [candidate(config, us, spread=spread) for config, us in times.items()],
        {},
        min_gain=0.01,
        tie_slack=tie_slack,
        preferred=preferred,
    )


def decisions(standings: list[Standing], cost: float = 0.0) -> list[str | None]:
    return assign(standings, weights_of(standings, {}), cost)


times = st.floats(1.0, 20.0)


@st.composite
def measured_shapes(draw: st.DrawFn) -> list[Standing]:
    tokens = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))
    return [
        standing(t, draw(times), draw(st.dictionaries(st.sampled_from([A, B, C]), times, max_size=3))) for t in tokens
    ]


@settings(deadline=None)
@given(
    measured_shapes(),
    st.floats(0, 3),
    st.dictionaries(st.integers(1, 50), st.floats(0.01, 100), max_size=5),
)
def test_bands_tile_and_never_lose(standings: list[Standing], cost: float, traffic: dict[int, float]) -> None:
    bands = find_bands(standings, traffic=traffic, config_cost_us=cost)
    assert bands[0].lo == 1
    assert bands[-1].hi == standings[-1].tokens
    for left, right in itertools.pairwise(bands):
        assert right.lo == left.hi + 1
        assert right.config != left.config
    for here in standings:
        (band,) = [band for band in bands if band.lo <= here.tokens <= band.hi]
        if band.config is not None:
            serving, baseline = here.by_config[band.config], here.baseline
            assert serving.median_us <= 0.99 * baseline.median_us
            assert serving.high_us < baseline.low_us
    if standings[0].tokens > 1:
        assert bands[0].config is None


@settings(deadline=None)
@given(measured_shapes())
def test_tokens_in_between_follow_an_end_or_are_stock(standings: list[Standing]) -> None:
    bands = find_bands(standings)
    for below, above in itertools.pairwise(standings):
        lower, upper = (
            next(band.config for band in bands if band.lo <= here.tokens <= band.hi) for here in (below, above)
        )
        for tokens in range(below.tokens + 1, above.tokens):
            (found,) = [band.config for band in bands if band.lo <= tokens <= band.hi]
            assert found in (lower, upper, None)
            if found is None:
                continue
            for here in (below, above):
                if found in here.by_config:
                    assert here.holds(found)
            if found not in below.by_config:
                assert above.by_config[found].high_us < below.baseline.low_us


@settings(deadline=None)
@given(measured_shapes(), st.floats(0, 3))
def test_dynamic_programming_finds_the_least(standings: list[Standing], cost: float) -> None:
    """Against every assignment there is, for as many as can be tried."""
    choices = [[None if c is None else c.config for c in here.choices] for here in standings]
    assume(math.prod(map(len, choices)) <= 300)
    weight = 1 / len(standings)

    def total(assignment: tuple[str | None, ...]) -> float:
        found, before = 0.0, None
        for here, config in zip(standings, assignment, strict=True):
            choice = None if config is None else here.by_config[config]
            found += weight * here.latency_us(choice) + (cost if config is not None and config != before else 0)
            before = config
        return found

    every: list[tuple[str | None, ...]] = [()]
    for mine in choices:
        every = [(*so_far, choice) for so_far in every for choice in mine]
    assert total(tuple(decisions(standings, cost))) == pytest.approx(min(map(total, every)), abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 63), st.floats(0.02, 0.5), st.floats(0.1, 0.9))
def test_a_known_crossover_is_found(crossover: int, slope: float, between: float) -> None:
    """Two straight lines that meet between two integers: each serves its side, exactly."""
    flat = 8 + slope * (crossover + between)
    standings = [
        standing(tokens, 80.0, {A: 8 + slope * tokens, B: flat}, spread=1e-6, tie_slack=0) for tokens in range(1, 65)
    ]
    first, second = find_bands(standings, config_cost_us=1e-6)
    assert (first.config, first.hi) == (A.digest, crossover)
    assert (second.config, second.lo, second.hi) == (B.digest, crossover + 1, 64)


def test_near_a_crossover_ties_go_to_the_neighbour() -> None:
    """Wide intervals: the two are equal from 6 to 10 tokens, where no config of its own is needed."""
    standings = [standing(t, 40.0, {A: 8 + 0.02 * t, B: 8.16}, spread=0.003) for t in range(1, 17)]
    first, second = find_bands(standings, config_cost_us=1e-6)
    assert (first.config, second.config) == (A.digest, B.digest)
    assert 4 <= first.hi <= 12


@pytest.mark.parametrize(
    ("us", "wins"),
    [(9.0, True), (9.85, True), (9.91, False), (9.95, False), (10.5, False)],
    ids=["far", "near", "intervals touch", "below the least gain", "slower"],
)
def test_a_config_serves_only_where_it_wins_beyond_its_interval(us: float, wins: bool) -> None:
    found = decisions([standing(4, 10.0, {A: us})])
    assert found == [A.digest if wins else None]


def test_the_least_gain_counts_beside_the_interval() -> None:
    sharp = [candidate(A, 9.95, spread=1e-5)]
    base = candidate(CUBLAS, 10.0, spread=1e-5)
    assert not Standing.of(4, base, sharp, {}, min_gain=0.01, tie_slack=0).wins
    assert Standing.of(4, base, sharp, {}, min_gain=0.001, tie_slack=0).wins


def test_a_tie_goes_to_the_incumbent_then_the_neighbour_then_the_simpler() -> None:
    tie = {A: 8.0, C: 7.99}
    assert decisions([standing(4, 10.0, tie)]) == [A.digest]
    assert decisions([standing(4, 10.0, tie, frozenset([C.digest]))]) == [C.digest]
    only_c = standing(2, 10.0, {A: 9.0, C: 7.0})
    assert decisions([only_c, standing(4, 10.0, tie)]) == [C.digest, C.digest]
    assert decisions([only_c, standing(4, 10.0, tie, frozenset([A.digest]))]) == [C.digest, A.digest]


def test_overlapping_intervals_do_not_unseat_a_finalist() -> None:
    """A is simpler and within the noise of its search, but C was measured again with the baseline."""
    base = candidate(CUBLAS, 10.0, session="s")
    finalist, simpler = candidate(C, 8.0, session="s"), candidate(A, 8.05)
    found = Standing.of(4, base, [finalist, simpler], {}, min_gain=0.01, tie_slack=0)
    assert found.tied == {A.digest, C.digest}
    assert decisions([found]) == [C.digest]
    lucky = Standing.of(4, base, [finalist, candidate(A, 7.98)], {}, min_gain=0.01, tie_slack=0)
    assert decisions([lucky]) == [A.digest]


@pytest.mark.parametrize(("searched_us", "wins"), [(10.0, True), (9.75, False), (9.65, False)])
def test_what_only_a_search_measured_must_win_there_too(searched_us: float, wins: bool) -> None:
    """The session of finalists ran slower by some percent: against its baseline alone A would seem to win."""
    base, searched = candidate(CUBLAS, 10.0, session="s"), candidate(CUBLAS, searched_us)
    found = Standing.of(4, base, [candidate(A, 9.7)], {}, min_gain=0.01, tie_slack=0, searched=searched)
    assert set(found.wins) == ({A.digest} if wins else set())
    finalist = candidate(A, 9.7, session="s")
    assert Standing.of(4, base, [finalist], {}, min_gain=0.01, tie_slack=0, searched=searched).wins


def test_a_config_of_its_own_must_earn_its_cost() -> None:
    standings = [
        standing(1, 10.0, {A: 5.0, B: 6.0}),
        standing(2, 10.0, {A: 5.3, B: 5.0}),
        standing(4, 10.0, {A: 5.0, B: 6.0}),
    ]
    assert decisions(standings, cost=0.0) == [A.digest, B.digest, A.digest]
    assert decisions(standings, cost=0.2) == [A.digest] * 3
    assert decisions(standings, cost=100.0) == [None] * 3


def test_traffic_moves_the_decision_to_where_the_steps_are() -> None:
    standings = [standing(1, 10.0, {A: 5.0, B: 6.0}), standing(2, 10.0, {A: 6.0, B: 5.0})]
    cost = 0.6
    for traffic, serving in (({1: 9.0, 2: 1.0}, A), ({1: 1.0, 2: 9.0}, B)):
        assert assign(standings, weights_of(standings, traffic), cost) == [serving.digest] * 2


def test_tokens_without_traffic_still_get_what_is_fastest() -> None:
    standings = [standing(1, 10.0, {A: 5.0}), standing(2, 10.0, {A: 5.0, B: 4.0})]
    assert assign(standings, weights_of(standings, {1: 1.0}), 0.0) == [A.digest, B.digest]


def test_weights_go_to_the_next_larger_measured_tokens() -> None:
    standings = [standing(t, 10.0, {}) for t in (2, 8)]
    assert weights_of(standings, {}) == [0.5, 0.5]
    assert weights_of(standings, {1: 1.0, 2: 1.0, 3: 1.0, 8: 1.0, 9: 100.0}) == [0.5, 0.5]
    assert weights_of(standings, {9: 1.0}) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("below", "above", "between"),
    [
        ({A: 5.0}, {A: 5.0}, A),
        ({A: 5.0, B: 6.0}, {B: 5.0}, B),
        ({A: 5.0}, {A: 6.0, B: 5.0}, A),
        ({A: 5.0}, {B: 5.0}, B),
        ({A: 5.0}, {B: 9.95}, None),
        ({A: 5.0, B: 11.0}, {B: 5.0}, None),
        ({B: 11.0}, {B: 5.0}, None),
        ({A: 5.0}, {A: 11.0}, None),
        ({A: 11.0}, {A: 11.0}, None),
    ],
    ids=[
        "the same at both ends",
        "the upper end's wins at both",
        "the lower end's wins at both",
        "the upper end's was never tried below",
        "and may not win there",
        "the upper end's loses below",
        "stock below",
        "stock above",
        "stock at both ends",
    ],
)
def test_the_rule_between_two_measured_tokens(
    below: dict[Config, float], above: dict[Config, float], between: Config | None
) -> None:
    bands = find_bands([standing(2, 10.0, below), standing(5, 10.3, above)])
    found = {band.config for band in bands if band.lo <= 4 and band.hi >= 3}
    assert found == {between and between.digest}


def test_below_the_smallest_measured_tokens_is_stock() -> None:
    bands = find_bands([standing(4, 10.0, {A: 5.0})])
    assert [(band.lo, band.hi, band.config) for band in bands] == [(1, 3, None), (4, 4, A.digest)]
