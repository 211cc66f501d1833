"""The process that answers: whatever it does, the coordinator has an answer or knows why there is none."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_tuner.workers.child import MOST_WRITTEN_BYTES
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.child import ChildLostError

LIMIT_S = 20.0
SHORT_S = 0.5


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child("stand_ins", "plain", environment={"MEGATUNE_TEST": "1"})
    yield made
    made.close()


def test_it_answers_and_is_told_what_went_wrong(child: Child) -> None:
    assert not child.is_alive
    assert child.call(("echo", 7), LIMIT_S) == 7
    assert child.is_alive
    with pytest.raises(MegatuneError, match="no such thing"):
        child.call(("refuse", "no such thing"), LIMIT_S)
    assert child.calls == 2
    with pytest.raises(ChildLostError, match="exit 1: RuntimeError: it broke") as broken:
        child.call(("raise", "it broke"), LIMIT_S)
    assert not broken.value.hung
    with pytest.raises(ChildLostError, match="SIGKILL"):
        child.call(("end", None), LIMIT_S)
    assert child.call(("echo", 8), LIMIT_S) == 8


@pytest.mark.parametrize("word", ["hang", "half"])
def test_no_answer_and_half_an_answer_end_at_the_limit(child: Child, word: str) -> None:
    child.call(("write", b"at work\n"), LIMIT_S)
    pid = child.pid
    assert pid is not None
    started = time.monotonic()
    with pytest.raises(ChildLostError, match=r"no answer within 0\.5 s: at work") as lost:
        child.call((word, None), SHORT_S)
    assert lost.value.hung
    assert time.monotonic() - started < SHORT_S + 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_takes_no_message_ends_at_the_limit(child: Child) -> None:
    child.call(("echo", 1), LIMIT_S)
    pid = child.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ChildLostError) as lost:
        child.call(("echo", bytes(8 << 20)), SHORT_S)
    assert lost.value.hung


def test_what_it_writes_does_not_pile_up(child: Child) -> None:
    for _ in range(3):
        child.call(("write", b"x" * MOST_WRITTEN_BYTES), LIMIT_S)
    child.call(("write", b"\nlast words\n"), LIMIT_S)
    assert os.fstat(child._errors.fileno()).st_size <= 2 * MOST_WRITTEN_BYTES
    with pytest.raises(ChildLostError, match=r"SIGKILL: last words$"):
        child.call(("end", None), LIMIT_S)


def test_an_interrupted_call_leaves_no_answer_behind(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    child.call(("echo", 1), LIMIT_S)

    def interrupted(limit_s: float) -> bool:
        raise KeyboardInterrupt

    assert child._connection is not None
    monkeypatch.setattr(child._connection, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.call(("echo", "stale"), LIMIT_S)
    assert child.call(("echo", "fresh"), LIMIT_S) == "fresh"


def test_ending_from_another_thread_is_for_good(child: Child) -> None:
    child.call(("echo", 1), LIMIT_S)
    ending = threading.Timer(0.3, child.end)
    ending.start()
    with pytest.raises(ChildLostError):
        child.call(("hang", None), LIMIT_S)
    ending.join()
    with pytest.raises(ChildLostError, match="closed"):
        child.call(("echo", 2), LIMIT_S)
    assert child.is_ended


def test_a_thread_that_computes_does_not_hold_up_answers(child: Child) -> None:
    child.call(("echo", 1), LIMIT_S)
    assert sys.getswitchinterval() <= 0.001
