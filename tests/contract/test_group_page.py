"""The page that the ranks of a group share: who came, who did not, and nothing that is half written."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from megatune_tuner.workers.group_page import SLOT_BYTES
from megatune_tuner.workers.group_page import Doing
from megatune_tuner.workers.group_page import LateError
from megatune_tuner.workers.group_page import Meeting
from megatune_tuner.workers.group_page import Page

WORLD = 3
ROUNDS = 300


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page.create(WORLD)
    yield made
    made.close()


def test_what_one_process_says_another_reads(page: Page) -> None:
    other = Page(os.dup(page.file), WORLD)
    assert other.doing(1) is None
    before = other.progress()
    page.publish(1, Doing("verify"))
    assert other.doing(1) == Doing("verify")
    assert other.progress() != before
    page.publish(1, Doing("verify", waits=True))
    assert other.doing(1) == Doing("verify", waits=True)
    assert other.doing(0) is None
    other.close()


def test_what_is_half_written_is_not_taken_for_written(page: Page) -> None:
    page.post(0, 1, {"value": 7})
    whole = bytes(page._memory[:])
    page.post(0, 3, {"value": 8888})
    later = bytes(page._memory[:])
    assert page.posted(0, 1) is None
    changed = [place for place in range(len(whole)) if whole[place] != later[place]]
    # In any order, as far as any one byte: either the old record, or the new one, or none.
    random.Random(0).shuffle(changed)
    page._memory[:] = whole
    for place in changed[:-1]:
        page._memory[place] = later[place]
        assert page.posted(0, 3) is None
        assert page.posted(0, 1) in (None, {"value": 7})
    page._memory[changed[-1]] = later[changed[-1]]
    assert page.posted(0, 3) == {"value": 8888}


def test_what_does_not_fit_is_refused(page: Page) -> None:
    page.post(0, 1, "x" * (SLOT_BYTES // 2))
    with pytest.raises(ValueError, match="too many for a slot"):
        page.post(0, 2, "x" * SLOT_BYTES)


def test_ranks_meet_again_and_again(page: Page) -> None:
    def meets(ranks: tuple[int, ...]) -> list[list[int]]:
        meeting = Meeting(page, ranks)
        return [meeting.exchange({rank: 100 * number + rank for rank in ranks}, 60) for number in range(ROUNDS)]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(meets, [(0, 2), (1,)]))
    assert found[0] == found[1] == [[100 * number + rank for rank in range(WORLD)] for number in range(ROUNDS)]


def test_who_does_not_come_is_named_with_what_it_does(page: Page) -> None:
    page.publish(2, Doing("prepare"))
    meeting = Meeting(page, (0,))
    meeting.begin("verify")
    with pytest.raises(LateError, match=r"rank 1 \(not started\), rank 2 \(prepare\) did not come within 0 s"):
        meeting.exchange({0: 1}, 0.05)
    assert page.doing(0) == Doing("verify", waits=True)


def test_what_others_left_can_be_seen_before_coming(page: Page) -> None:
    meeting, other = Meeting(page, (0,)), Meeting(page, (1,))
    assert meeting.expected() == []
    with pytest.raises(LateError):
        other.exchange({1: "failed"}, 0.01)
    assert meeting.expected() == ["failed"]
