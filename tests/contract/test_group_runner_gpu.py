"""Runners ``group`` and ``emulated`` on real GPUs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.group import EmulatedRunner
from megatune_tuner.runners.group import GroupRunner
from megatune_tuner.runners.group import Limits
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import RunnerContract

LIMITS = Limits(measure_s=4.0)
AGAIN_S = 60.0
"""Within which a new group has to measure after one that hung."""
N = 1 << 12
TOO_MUCH = 1 << 40


def faulty(runner: Runner, variant: str, unit: int = 1, n: int = N) -> Request:
    tuned = operator("faulty_sum")
    workload = tuned.workload({"n": n}, 1, world=runner.target.hardware.world)
    config = Config.of(variant, {"unit": unit})
    arch = architecture(runner.target.hardware.arch)
    # What cannot be held cannot be compiled either, and need not be.
    compiled = workload if n < TOO_MUCH else tuned.workload({"n": N}, 1, world=workload.world)
    return Request(workload, config, COLD_GRAPH, tuned.compile(compiled, config, arch))


class OnGpus(RunnerContract):
    failures = (Status.WRONG_RESULT, Status.INFEASIBLE, Status.OUT_OF_MEMORY, Status.CRASH, Status.HANG)

    def failing(self, runner: Runner, status: Status) -> Request:
        if status is Status.OUT_OF_MEMORY:
            return faulty(runner, "good", n=TOO_MUCH)
        variants = {
            Status.WRONG_RESULT: "wrong",
            Status.INFEASIBLE: "crowded",
            Status.CRASH: "crash",
            Status.HANG: "hang",
        }
        return faulty(runner, variants[status])

    @pytest.mark.parametrize(
        ("variant", "status"),
        [
            ("stale", Status.WRONG_RESULT),
            ("refused", Status.INFEASIBLE),
            ("wide", Status.INFEASIBLE),
        ],
    )
    def test_other_ways_to_fail(self, runner: GroupRunner, variant: str, status: Status) -> None:
        measurement = runner.measure(faulty(runner, variant))
        assert measurement.status is status, measurement.reason

    def test_a_failing_finalist_leaves_the_others_in(self, runner: GroupRunner) -> None:
        requests = [faulty(runner, "good"), faulty(runner, "wrong"), faulty(runner, "good", 2)]
        statuses = [measurement.status for measurement in runner.finalists(requests)]
        assert statuses == [Status.OK, Status.WRONG_RESULT, Status.OK]

    def test_thousands_of_launches_with_new_values_and_skewed_starts(self, runner: GroupRunner) -> None:
        outcome = runner.stress(faulty(runner, "good"), 1000)
        assert outcome.status is Status.OK, outcome.reason

    def test_a_hang_is_over_soon(self, runner: GroupRunner, record_property: Callable[[str, object], None]) -> None:
        assert runner.measure(faulty(runner, "good")).status is Status.OK
        hang = runner.measure(faulty(runner, "hang"))
        assert hang.status is Status.HANG
        assert "stopped in verify" in hang.reason
        began = time.monotonic()
        measurement = runner.measure(faulty(runner, "good"))
        seconds = time.monotonic() - began
        record_property("seconds from the end of a hung group to the next measurement", seconds)
        print(f"a new group measured {seconds:.1f} s after the end of one that hung: {hang.reason}")
        assert measurement.status is Status.OK, measurement.reason
        assert seconds < AGAIN_S

    def test_a_process_that_is_killed_is_replaced(self, runner: GroupRunner) -> None:
        assert runner.measure(faulty(runner, "good")).status is Status.OK
        os.kill(runner.processes[-1], signal.SIGKILL)
        time.sleep(0.2)
        assert runner.measure(faulty(runner, "good")).status is Status.OK


@pytest.mark.gpu
class TestEmulatedRunner(OnGpus):
    provenance = Provenance.EMULATED

    @pytest.fixture(scope="class", params=[2, 8])
    def device(self, request: pytest.FixtureRequest) -> Iterator[EmulatedRunner]:
        with EmulatedRunner(request.param, limits=LIMITS) as made:
            yield made

    @pytest.fixture
    def runner(self, device: EmulatedRunner) -> EmulatedRunner:
        return device

    def good(self, runner: Runner) -> list[Request]:
        return [faulty(runner, "good"), faulty(runner, "good", 2)]

    def test_the_target_is_marked(self, runner: EmulatedRunner) -> None:
        assert runner.target.hardware.links == "emulated"

    def test_a_baseline_needs_a_group(self, runner: EmulatedRunner) -> None:
        workload = faulty(runner, "good").workload
        measurement = runner.measure(Request(workload, Config.of("nccl", {}), COLD_GRAPH))
        assert measurement.status is Status.INFEASIBLE
        assert "a GPU for every rank" in measurement.reason


@pytest.mark.multi_gpu
class TestGroupRunner(OnGpus):
    provenance = Provenance.MEASURED

    @pytest.fixture(scope="class")
    def device(self) -> Iterator[GroupRunner]:
        with GroupRunner(2, limits=LIMITS) as made:
            yield made

    @pytest.fixture
    def runner(self, device: GroupRunner) -> GroupRunner:
        return device

    def good(self, runner: Runner) -> list[Request]:
        tuned = [faulty(runner, "good"), faulty(runner, "good", 2)]
        return [*tuned, Request(tuned[0].workload, Config.of("nccl", {}), COLD_GRAPH)]

    def test_the_target_says_how_ranks_are_linked(self, runner: GroupRunner) -> None:
        hardware = runner.target.hardware
        assert hardware.world == 2
        assert hardware.links.startswith(("nvlink-", "pcie"))
        assert runner.facts["link_bytes_a_us"] > 0

    def test_a_search_takes_milliseconds(self, runner: GroupRunner) -> None:
        """Says how many; a test decides nothing by it."""
        times = [runner.measure(faulty(runner, "good", unit)).measure_s for unit in (1, 2) * 20]
        print(f"a measurement took {1e3 * sorted(times)[len(times) // 2]:.1f} ms")
        assert all(seconds > 0 for seconds in times)


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_one_line() -> None:
    with pytest.raises(MegatuneError, match="GPU 99"):
        EmulatedRunner(2, first_gpu=99)
