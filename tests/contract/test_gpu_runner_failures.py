"""Runner ``gpu`` over a process that needs no GPU: what a config does to it costs that config alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.runners import gpu
from megatune_tuner.runners import processes
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner
from megatune_tuner.workers.child import Child
from tests.contract.runner_contract import COLD_GRAPH

RUN_LIMIT_S = 1.0


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuRunner]:
    monkeypatch.setattr(processes, "_missing", lambda _: False)
    monkeypatch.setattr(gpu, "Child", lambda *_: Child("stand_ins", "gpu"))
    with GpuRunner(run_limit_s=RUN_LIMIT_S) as made:
        yield made


def request(variant: str) -> Request:
    return Request(operator("faulty").workload({"n": 1024}, 1), Config.of(variant, {}), COLD_GRAPH)


@pytest.mark.parametrize("variant", ["crash", "hang", "poison"])
def test_a_worker_that_starts_slowly_is_not_taken_for_a_config_that_hangs(runner: GpuRunner, variant: str) -> None:
    assert runner.measure(request(variant)).status in (Status.CRASH, Status.HANG)
    # Starting again takes longer than a measurement may.
    assert runner.measure(request("good")).status is Status.OK


@pytest.mark.parametrize(("variant", "status"), [("crash", Status.CRASH), ("hang", Status.HANG)])
def test_a_finalist_that_ends_the_process_leaves_the_others_in(runner: GpuRunner, variant: str, status: Status) -> None:
    found = runner.finalists([request(name) for name in ("good", variant, "wrong", "good")])
    assert [one.status for one in found] == [Status.OK, status, Status.WRONG_RESULT, Status.OK]
    assert len({one.session for one in found}) == 1
    assert [len(one.samples_us) for one in found] == [3, 0, 0, 3]


def test_finalists_that_all_end_the_process_all_have_its_status(runner: GpuRunner) -> None:
    found = runner.finalists([request("crash"), request("poison")])
    assert {one.status for one in found} == {Status.CRASH}
    assert all(one.reason for one in found)


def test_no_process_is_left_where_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("stand_ins", "no_gpu")
    monkeypatch.setattr(processes, "_missing", lambda _: False)
    monkeypatch.setattr(gpu, "Child", lambda *_: child)
    with pytest.raises(MegatuneError, match="no GPU here"):
        GpuRunner()
    assert not child.is_alive


def test_a_worker_is_replaced_after_many_measurements(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "RECYCLE_AFTER", 3)  # with the message that starts it
    pids = set()
    for _ in range(3):
        assert runner.measure(request("good")).status is Status.OK
        pids.add(runner._child.pid)
    assert len(pids) == 2
