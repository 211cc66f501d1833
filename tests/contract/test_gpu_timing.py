"""How the worker times, over a GPU that only keeps a diary."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import pytest

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.workers.gpu_messages import Job

pytestmark = pytest.mark.torch

HEAT_S = 0.05
PAUSE_S = 0.02
ARTIFACT = Artifact("key", "sm_90a", "entry", b"", 0, 0)


@dataclass
class Diary:
    """What the worker did, in order, and what the GPU is to do wrong."""

    lines: list[str] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    wrong: str = ""
    fault: Exception | None = None
    gone: bool = False


class Event:
    def __sub__(self, other: Event) -> float:
        return 0.25


class Stream:
    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def record(self, event: Event) -> None:
        self.diary.lines.append("event")

    def sync(self) -> None:
        if self.diary.gone:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    def create_graph_builder(self) -> Builder:
        return Builder()


class Builder:
    is_building = True

    def begin_building(self) -> None:
        """Capture."""

    def end_building(self) -> Builder:
        raise RuntimeError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")

    close = begin_building


class Device:
    l2_bytes = 50 << 20

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def throttled(self) -> bool:
        return False

    def sm_clock_mhz(self) -> int:
        return 1980

    def others(self) -> list[int]:
        return self.diary.others.pop(0) if self.diary.others else []


class Buffers:
    copies = 2

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def refresh(self) -> None:
        """Other values."""

    poison = refresh

    def check(self) -> str:
        self.diary.lines.append("check")
        return self.diary.wrong


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def bench(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from megatune_tuner.workers import gpu_timing
    from megatune_tuner.workers.held import Held

    monkeypatch.setattr(gpu_timing, "HEAT_S", HEAT_S)
    monkeypatch.setattr(gpu_timing, "PAUSE_S", PAUSE_S)
    made: Any = object.__new__(gpu_timing.Bench)
    made.device = Device(diary)
    made._stream = Stream(diary)
    made._events = [Event()] * (2 * gpu_timing.MOST_SAMPLES)
    made._held = Held()
    made._alone_us = {}
    made._last_busy = made._next_watch = -float("inf")

    def replay() -> None:
        diary.lines.append("replay")
        if diary.fault is not None:
            raise diary.fault

    def ready(job: Job) -> Any:
        if job.config.variant == "gone":
            diary.gone = True
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return gpu_timing._Ready(job, Buffers(diary), 100, replay, 0, lambda: None, lambda *_: None)  # type: ignore[arg-type]

    made._ready = ready
    return made


def job(variant: str = "good", n: int = 1 << 20) -> Job:
    workload = operator("faulty").workload({"n": n}, 1)
    return Job(workload, Config.of(variant, {}), ARTIFACT, cold=True, graph=True)


def replays_before_the_first_sample(lines: list[str]) -> int:
    verified, sampled = lines.index("check"), lines.index("event")
    return lines[verified:sampled].count("replay")


def test_clocks_are_up_before_the_first_sample_after_a_pause(bench: Any, diary: Diary) -> None:
    started = time.monotonic()
    assert bench.search(job()).status is Status.OK
    assert time.monotonic() - started >= HEAT_S
    assert replays_before_the_first_sample(diary.lines) > 10

    # Without a pause the clocks are up: one replay goes ahead of the samples, untimed.
    diary.lines.clear()
    assert bench.search(job()).status is Status.OK
    assert replays_before_the_first_sample(diary.lines) == 1

    diary.lines.clear()
    time.sleep(2 * PAUSE_S)
    assert bench.search(job()).status is Status.OK
    assert replays_before_the_first_sample(diary.lines) > 10


def test_a_result_is_verified_before_and_after(bench: Any, diary: Diary) -> None:
    assert bench.search(job()).status is Status.OK
    assert (diary.lines[1], diary.lines[-1]) == ("check", "check")
    diary.wrong = "one of them differs"
    found = bench.search(job())
    assert (found.status, found.reason, found.poisoned) == (Status.WRONG_RESULT, "one of them differs", False)


@pytest.mark.parametrize(
    ("error", "gone", "status", "poisoned"),
    [
        ("CUDA_ERROR_INVALID_VALUE: a block", False, Status.INFEASIBLE, False),
        ("CUDA_ERROR_OUT_OF_MEMORY", False, Status.OUT_OF_MEMORY, False),
        ("CUBLAS_STATUS_ALLOC_FAILED", False, Status.OUT_OF_MEMORY, False),
        ("CUDA_ERROR_INVALID_VALUE", True, Status.CRASH, True),
        ("something else", False, Status.CRASH, True),
    ],
)
def test_errors_have_the_status_that_they_stand_for(
    bench: Any, diary: Diary, error: str, gone: bool, status: Status, poisoned: bool
) -> None:
    diary.fault, diary.gone = RuntimeError(error), gone
    found = bench.search(job())
    assert (found.status, found.poisoned) == (status, poisoned)
    assert found.reason


def test_another_process_is_waited_for_and_its_samples_are_taken_again(
    bench: Any, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    diary.others = [[7], []]
    assert bench.search(job()).status is Status.OK
    bench._next_watch = -float("inf")
    diary.others = [[7]] * 3
    with pytest.raises(MegatuneError, match=r"another process computes on this GPU \(pid 7\)"):
        bench.search(job())
    bench._next_watch = -float("inf")
    diary.others = [[7]] * 3
    with pytest.raises(MegatuneError, match="another process"):
        bench.final([job(), job()], 1)


def test_a_finalist_that_ends_the_context_is_the_only_one_to_blame(bench: Any) -> None:
    first, second, third = bench.final([job(), job("gone"), job()], 1)
    assert second.poisoned
    assert {one.status for one in (first, second, third)} == {Status.CRASH}
    assert not first.poisoned
    assert not third.poisoned


def test_finalists_are_sampled_in_rounds(bench: Any) -> None:
    first, second = bench.final([job(), job()], random.getrandbits(32))
    assert len(first.samples_us) == len(second.samples_us) == 31


@pytest.fixture
def _refused(bench: Any, diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench with its own ``_ready``, and launches that the driver refuses."""
    from megatune_tuner.workers import gpu_timing

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE: refused")

    monkeypatch.delattr(bench, "_ready")
    monkeypatch.setattr(bench, "_kernel", lambda *_: refuse)
    # A torch that was built without a GPU has no memory pools.
    memory = SimpleNamespace(used=nullcontext, close=lambda: None)
    monkeypatch.setattr(gpu_timing, "Apart", lambda: memory)
    monkeypatch.setattr(gpu_timing.operator("faulty"), "inputs", lambda *_: Buffers(diary), raising=False)


@pytest.mark.usefixtures("_refused")
def test_a_launch_that_is_refused_in_a_graph_is_infeasible(bench: Any) -> None:
    found = bench.search(job())
    assert (found.status, found.reason) == (Status.INFEASIBLE, "CUDA_ERROR_INVALID_VALUE: refused")


@pytest.mark.usefixtures("_refused")
def test_operands_too_small_to_be_cold_are_infeasible_at_once(bench: Any) -> None:
    found = bench.search(job(n=64))
    assert found.status is Status.INFEASIBLE
    assert "measure it warm" in found.reason
