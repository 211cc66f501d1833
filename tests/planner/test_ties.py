from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from plan_examples import candidate
from plan_examples import simt

from megatune_db.records import APART
from megatune_kernels.space import Config
from megatune_planner.ties import best
from megatune_planner.ties import compare
from megatune_planner.ties import simplicity
from megatune_planner.ties import tie_set

FAST, SLOW, OTHER = simt(block=64), simt(block=128), simt(block=256)


def test_without_pairs_overlapping_intervals_tie() -> None:
    fast, near, far = candidate(FAST, 10.0), candidate(SLOW, 10.07), candidate(OTHER, 10.2)
    assert tie_set([far, near, fast], {}) == (fast, near)
    assert not compare(near, fast, {}).paired


def test_pairs_tell_apart_what_common_noise_hides() -> None:
    drift = np.linspace(0.95, 1.05, 20)
    samples = {1: 10 * drift, 2: 10.1 * drift}
    fast = candidate(FAST, 10.0, id_=1, spread=0.03, session="s")
    slow = candidate(SLOW, 10.1, id_=2, spread=0.03, session="s")
    assert tie_set([fast, slow], {}) == (fast, slow)
    assert tie_set([fast, slow], samples) == (fast,)
    found = compare(slow, fast, samples)
    assert found.paired
    assert found.ratio == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("other_session", "samples"),
    [
        ("other", {1: np.full(20, 10.0), 2: np.full(20, 10.1)}),
        ("s", {1: np.full(20, 10.0)}),
        ("s", {1: np.full(20, 10.0), 2: np.full(19, 10.1)}),
        ("s", {1: np.full(5, 10.0), 2: np.full(5, 10.1)}),
    ],
    ids=["two sessions", "no samples", "unequal numbers", "too few"],
)
def test_what_cannot_be_paired_is_compared_by_intervals(other_session: str, samples: dict[int, np.ndarray]) -> None:
    fast = candidate(FAST, 10.0, id_=1, session="s")
    slow = candidate(SLOW, 10.1, id_=2, session=other_session)
    assert not compare(slow, fast, samples).paired


def test_finalists_that_were_not_interleaved_do_not_pair() -> None:
    samples = {1: np.full(20, 10.0), 2: np.full(20, 10.1)}
    for session, paired in (("s", True), (f"{APART}s", False)):
        fast = candidate(FAST, 10.0, id_=1, session=session)
        assert compare(candidate(SLOW, 10.1, id_=2, session=session), fast, samples).paired is paired


def test_a_difference_within_the_slack_never_decides() -> None:
    samples = {1: np.full(50, 10.0), 2: np.full(50, 10.005)}
    fast = candidate(FAST, 10.0, id_=1, session="s")
    near = candidate(SLOW, 10.005, id_=2, session="s")
    assert tie_set([fast, near], samples) == (fast,)
    assert tie_set([fast, near], samples, slack=0.001) == (fast, near)


def test_a_finalist_stands_in_front_of_a_lucky_search() -> None:
    lucky = candidate(FAST, 9.98)
    finalist = candidate(SLOW, 10.0, session="s")
    assert best([lucky, finalist]) is finalist
    truly_faster = candidate(FAST, 9.0)
    assert best([truly_faster, finalist]) is truly_faster


def test_no_candidates_no_ties() -> None:
    assert tie_set([], {}) == ()
    with pytest.raises(ValueError, match="empty"):
        best([])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_interval_of_equal_configs_seldom_excludes_one(seed: int) -> None:
    # One draw can be unlucky; a whole seed's twenty cannot all be.
    noise = np.random.default_rng(seed)
    a, b = candidate(FAST, 10.0, id_=1, session="s"), candidate(SLOW, 10.0, id_=2, session="s")
    ties = [len(tie_set([a, b], {1: noise.normal(10, 0.1, 30), 2: noise.normal(10, 0.1, 30)})) for _ in range(20)]
    assert ties.count(2) > 10


def test_simpler_means_less_switched_on_then_smaller_then_first() -> None:
    plain = simt()
    split = simt(split_k=2)
    static = simt(static_k=True)
    larger = simt(block=256)
    ordered = sorted((candidate(c, 1.0) for c in (split, static, larger, plain)), key=simplicity)
    assert [c.config for c in ordered[:2]] == [plain.digest, larger.digest]
    assert {c.config for c in ordered[2:]} == {split.digest, static.digest}
    assert simplicity(candidate(Config.of("a", {"x": 2}), 1.0)) < simplicity(candidate(Config.of("b", {"x": 2}), 1.0))
