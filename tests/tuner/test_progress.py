"""What a person sees of a campaign, and how it is stopped."""

from __future__ import annotations

import io
import os
import signal
import threading

import pytest
from toy_recordings import workloads

from megatune_db.records import Status
from megatune_tuner import progress
from megatune_tuner.progress import PlainProgress
from megatune_tuner.progress import RichProgress
from megatune_tuner.progress import duration
from megatune_tuner.stopping import Stop

CELL = workloads()[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_come_every_few_seconds(clock: list[float]) -> None:
    stream = io.StringIO()
    with PlainProgress(stream) as shown:
        shown.expect(30)
        shown.skip(4)
        for number in range(12):
            clock[0] += 2.0
            shown.measured(CELL, Status.HANG if number % 4 == 3 else Status.OK, 7.125 if number else None)
        shown.note("the baseline failed")
    first, *middle, last, note = stream.getvalue().splitlines()
    # One trial, which has waited for the first compilation, says nothing about the others.
    assert first == f"5/30; {CELL}"
    assert len(middle) == 2
    assert last == f"14/30; {CELL}, best 7.12 µs; 2 hang; 32 s left"
    assert note == "the baseline failed"


def test_without_a_total_there_is_no_time_left(clock: list[float]) -> None:
    stream = io.StringIO()
    with PlainProgress(stream) as shown:
        shown.expect(None)
        shown.measured(CELL, Status.OK, 7.125)
    assert stream.getvalue() == f"1; {CELL}, best 7.12 µs\n"
    assert shown.left_s is None


def test_the_bar_shows_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with RichProgress() as shown:
        shown.expect(3)
        shown.measured(CELL, Status.OK, 7.125)
        shown.measured(CELL, Status.CRASH, 7.125)
        shown.note("[not markup]")
    text = capsys.readouterr().err
    assert "2/3" in text
    assert "best 7.12 µs" in text
    assert "1 crash" in text
    assert "[not markup]" in text


def test_a_narrow_terminal_cuts_the_news_and_never_the_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with RichProgress() as shown:
        shown.expect(12345)
        for number in range(1000):
            clock[0] += 3.5
            shown.measured(CELL, Status.CRASH if number % 8 else Status.COMPILE_ERROR, 7.125)
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert " 1000/12345 " in line
    assert f" {duration(11345 * 3.5)} left " in line
    assert "125 compile_error" in line
    assert line.rstrip().endswith("…")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop() as stop:
        os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_in_another_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with Stop() as stop:
            seen.append(signal.getsignal(signal.SIGINT))
            stop.request()
            seen.append(stop.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before, True]
