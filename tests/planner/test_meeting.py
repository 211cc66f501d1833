"""Where curves meet: synthetic curves whose meeting is known."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.crossing import next_tokens
from megatune_kernels.crossing import side
from megatune_kernels.statistics import Interval
from megatune_kernels.statistics import median_interval
from megatune_kernels.statistics import paired_ratio
from megatune_planner.meeting import Compared
from megatune_planner.meeting import Meeting
from megatune_planner.meeting import meet

Curve = Callable[[int], float]
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def exact(at: int, first: float, second: float) -> Compared:
    """Two latencies without any noise."""
    ratio = Interval(*[second / first] * 3)
    return Compared(at, side(ratio), ratio, Interval(*[first] * 3), Interval(*[second] * 3))


def between(first: Curve, second: Curve, places: Iterable[int]) -> Meeting:
    return meet([exact(at, first(at), second(at)) for at in places])


def sampled(first: Curve, second: Curve, at: int, noise: np.random.Generator, count: int = 30) -> Compared:
    """Pairs that drift together, each with noise of its own."""
    drift = 1 + 0.02 * noise.standard_normal(count)
    one, other = (curve(at) * drift * (1 + 0.004 * noise.standard_normal(count)) for curve in (first, second))
    ratio = paired_ratio(other, one)
    return Compared(at, side(ratio), ratio, median_interval(one), median_interval(other))


@given(st.floats(3, 500), st.floats(0.02, 0.5), st.floats(0.0, 0.9))
def test_a_meeting_is_found_to_the_token_where_every_token_was_measured(
    meeting: float, steep: float, flatness: float
) -> None:
    """One hop with much traffic against two hops with less: straight lines that meet at a known place."""

    def fan_out(tokens: int) -> float:
        return 2 + steep * tokens

    def two_stage(tokens: int) -> float:
        return 2 + steep * meeting + flatness * steep * (tokens - meeting)

    found = between(fan_out, two_stage, range(1, 513))
    # A difference of less than 1 % is a tie, and lines that part slowly tie to the end.
    last = fan_out(512) / two_stage(512)
    if last < 1.0102 or two_stage(1) / fan_out(1) < 1.0102:
        return
    assert (found.kind, found.swapped, found.decided) == ("point", False, True)
    assert found.low <= meeting <= found.high
    assert found.unmeasured == ()
    assert found.tied == tuple(range(found.low + 1, found.high))
    assert found.estimate == pytest.approx(meeting, abs=1)
    assert found.suspect == ""


@given(st.integers(1, 511), st.floats(1.05, 3))
def test_a_step_is_a_point_between_two_tokens_and_suspect_where_it_is_steep(last: int, factor: float) -> None:
    found = between(lambda at: 10.0, lambda at: 10.0 * factor if at <= last else 10.0 / factor, range(1, 513))
    assert (found.kind, found.low, found.high, found.changes) == ("point", last, last + 1, ((last, last + 1),))
    assert bool(found.suspect) == (factor**2 > (last + 1) / last)


@given(st.floats(1.2, 500))
def test_sparse_places_give_an_interval_and_say_what_is_missing(meeting: float) -> None:
    found = between(lambda at: 2 + 0.04 * at, lambda at: 2 + 0.04 * meeting + 0.01 * (at - meeting), POWERS)
    if found.kind == "never":  # the lines part too slowly for the 1 % at the far end
        assert meeting > 250 or meeting < 4
        return
    assert found.low <= meeting <= found.high
    missing = {at for low, high in found.unmeasured for at in range(low, high + 1)}
    assert missing == set(range(found.low, found.high + 1)) - set(POWERS)
    assert found.kind == ("interval" if missing else "point")
    assert found.estimate is not None
    assert found.low <= found.estimate <= found.high


@given(st.lists(st.sampled_from([1, -1, 0]), min_size=1, max_size=40))
def test_the_kind_follows_from_the_number_of_changes(sides: list[int]) -> None:
    points = [Compared(at, each) for at, each in enumerate(sides, 1)]
    found = meet(points)
    decided = [each for each in sides if each]
    changes = sum(a != b for a, b in pairwise(decided))
    assert found.kind == {0: "never", 1: "point"}.get(changes, "contested")
    assert len(found.changes) == changes
    assert found.decided == bool(decided)
    assert found.swapped == (decided[:1] == [-1])
    assert found.estimate is None  # nothing but winners is known
    if changes:
        assert all(each in (0, decided[0]) for each in sides[: found.low])
        assert all(each in (0, decided[-1]) for each in sides[found.high - 1 :])
    else:
        assert (found.low, found.high) == (1, len(sides))
    assert found.tied == tuple(at for at, each in enumerate(sides, 1) if not each and found.low <= at <= found.high)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(20, 300))
def test_noise_widens_the_interval_and_moves_the_estimate_little(seed: int, meeting: float) -> None:
    def fan_out(tokens: int) -> float:
        return 2 + 0.05 * tokens

    def two_stage(tokens: int) -> float:
        return 2 + 0.05 * meeting + 0.02 * (tokens - meeting)

    noise = np.random.default_rng(seed)
    found = meet([sampled(fan_out, two_stage, at, noise) for at in range(1, 513)])
    assert found.kind == "point"
    assert found.low <= meeting <= found.high
    assert found.tied
    assert found.estimate == pytest.approx(meeting, rel=0.05)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_equal_curves_tie_whatever_the_noise(seed: int) -> None:
    noise = np.random.default_rng(seed)
    found = meet([sampled(lambda at: 3 + at / 50, lambda at: 3 + at / 50, at, noise) for at in range(1, 200)])
    assert (found.kind, found.decided, len(found.tied)) == ("never", False, 199)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(20, 400))
def test_refining_a_sparse_sweep_comes_to_what_a_full_one_says(seed: int, meeting: float) -> None:
    """To one token or 5 %, for at most a quarter of the full sweep's measurements."""

    def fan_out(tokens: int) -> float:
        return 2 + 0.04 * tokens

    def two_stage(tokens: int) -> float:
        return 2 + 0.04 * meeting + 0.015 * (tokens - meeting)

    noise = np.random.default_rng(seed)
    every = {at: sampled(fan_out, two_stage, at, noise) for at in range(1, 513)}
    full = meet(list(every.values()))
    measured = {at: every[at] for at in POWERS}
    while more := next_tokens({at: point.side for at, point in measured.items()}):
        measured |= {at: every[at] for at in more}
    found = meet(list(measured.values()))
    assert len(measured) <= 512 / 4
    assert found.estimate is not None
    assert full.estimate is not None
    assert abs(found.estimate - full.estimate) <= max(1, 0.05 * full.estimate)


def test_a_contested_range_names_every_change() -> None:
    found = meet([exact(at, 10.0, 12.0 if at in (1, 2, 3, 9) else 8.0) for at in (1, 2, 3, 4, 8, 9, 12)])
    assert (found.kind, found.low, found.high) == ("contested", 3, 12)
    assert found.changes == ((3, 4), (8, 9), (9, 12))
    assert found.unmeasured == ((10, 11),)
    assert found.estimate is None


def test_where_one_never_loses_ties_do_not_matter() -> None:
    found = meet([exact(at, 10.0, us) for at, us in ((1, 9.0), (2, 9.95), (4, 9.0), (8, 10.0))])
    assert (found.kind, found.swapped, found.decided) == ("never", True, True)
    assert (found.low, found.high, found.tied, found.unmeasured) == (1, 8, (2, 8), ())


def test_a_curve_that_grows_faster_than_its_work_is_suspect() -> None:
    found = between(lambda at: 8.1 if at < 256 else 19.3, lambda at: 9.0 if at < 256 else 10.0, (64, 128, 256, 512))
    assert found.kind == "interval"
    assert found.suspect == "from 128 to 256, 2.00 times the work, the ratio of the two steps 2.14 times"
    gently = between(lambda at: 8.1 if at < 256 else 16.9, lambda at: 8.9 if at < 256 else 13.0, (64, 128, 256, 512))
    assert gently.suspect == "from 128 to 256, 2.00 times the work, one of the two takes 2.09 times as long"


def test_the_noise_is_allowed_for_before_a_step_is_suspect() -> None:
    def compared(at: int, ratio: float, width: float) -> Compared:
        interval = Interval(ratio, ratio - width, ratio + width)
        return Compared(at, side(interval), interval)

    assert meet([compared(100, 1.02, 0.001), compared(101, 0.98, 0.001)]).suspect
    assert not meet([compared(100, 1.02, 0.019), compared(101, 0.98, 0.019)]).suspect


def test_no_places_no_meeting() -> None:
    with pytest.raises(ValueError, match="cannot meet"):
        meet([])


def test_bytes_are_places_too() -> None:
    points = [exact(at, 1 + at / 2**20, 3.0) for at in (2**19, 2**20, 2**22, 2**24)]
    found = meet(points)
    assert (found.kind, found.low, found.high) == ("interval", 2**20, 2**22)
    assert found.estimate == pytest.approx(2.15 * 2**20, rel=0.1)
    assert found.unmeasured == ((2**20 + 1, 2**22 - 1),)
