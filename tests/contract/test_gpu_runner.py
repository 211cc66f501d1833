"""Runner ``gpu`` on a real GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.gpu import GpuRunner
from tests.contract.runner_contract import BASELINE
from tests.contract.runner_contract import COLD_GRAPH
from tests.contract.runner_contract import FAULTY_SIZE
from tests.contract.runner_contract import WORKLOAD
from tests.contract.runner_contract import RunnerContract

pytestmark = pytest.mark.gpu

RUN_LIMIT_S = 12.0
WATCH_S = 1.5
"""Longer than the worker looks away."""


def compiled(workload: Workload, config: Config, runner: Runner) -> Artifact:
    tuned = operator(workload.operator)
    return tuned.compile(workload, config, architecture(runner.target.hardware.arch))


def faulty(runner: Runner, variant: str, n: int = FAULTY_SIZE) -> Request:
    workload = operator("faulty").workload({"n": n}, 1)
    config = Config.of(variant, {"unit": 1})
    return Request(workload, config, COLD_GRAPH, compiled(workload, config, runner))


class TestGpuRunner(RunnerContract):
    provenance = Provenance.MEASURED
    failures = (Status.WRONG_RESULT, Status.INFEASIBLE, Status.OUT_OF_MEMORY, Status.CRASH, Status.HANG)

    @pytest.fixture(scope="class")
    def device(self) -> Iterator[GpuRunner]:
        with GpuRunner(run_limit_s=RUN_LIMIT_S) as made:
            yield made

    @pytest.fixture
    def runner(self, device: GpuRunner) -> GpuRunner:
        return device

    def good(self, runner: Runner) -> list[Request]:
        arch = architecture(runner.target.hardware.arch)
        configs = operator("projection").space(WORKLOAD, arch).defaults()
        tuned = [Request(WORKLOAD, config, COLD_GRAPH, compiled(WORKLOAD, config, runner)) for config in configs]
        return [*tuned, Request(WORKLOAD, BASELINE, COLD_GRAPH)]

    def failing(self, runner: Runner, status: Status) -> Request:
        if status is Status.OUT_OF_MEMORY:
            return faulty(runner, "good", n=1 << 40)
        variants = {
            Status.WRONG_RESULT: "wrong",
            Status.INFEASIBLE: "refused",
            Status.CRASH: "crash",
            Status.HANG: "hang",
        }
        return faulty(runner, variants[status])

    def test_an_output_that_is_not_written_is_found(self, runner: GpuRunner) -> None:
        assert runner.measure(faulty(runner, "stale")).status is Status.WRONG_RESULT

    def test_a_failing_finalist_leaves_the_others_in(self, runner: GpuRunner) -> None:
        good, wrong = faulty(runner, "good"), faulty(runner, "wrong")
        statuses = [measurement.status for measurement in runner.finalists([good, wrong, good])]
        assert statuses == [Status.OK, Status.WRONG_RESULT, Status.OK]

    def test_a_worker_that_is_killed_is_replaced(self, runner: GpuRunner) -> None:
        request = self.good(runner)[0]
        assert runner.measure(request).status is Status.OK
        pid = runner._child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        assert runner.measure(request).status is Status.OK

    def test_regimes_differ_as_they_should(self, runner: GpuRunner) -> None:
        workload = operator("projection").workload({"n": 2112, "k": 7168}, 1)
        config = operator("projection").space(workload, architecture(runner.target.hardware.arch)).defaults()[0]
        artifact = compiled(workload, config, runner)
        times = {}
        for regime in (COLD_GRAPH, Regime("warm", "graph"), Regime("cold", "eager")):
            measurement = runner.measure(Request(workload, config, regime, artifact))
            assert measurement.status is Status.OK, measurement.reason
            assert measurement.median_us is not None
            times[str(regime)] = measurement.median_us
            assert (measurement.flush_bytes > 0) is (regime.weights == "cold")
        # 30 MB of weights fit the L2 of every GPU that this runs on, so warm must be faster than memory allows.
        assert times["warm-graph"] < times["cold-graph"]

    def test_samples_carry_the_clock_and_the_flush(self, runner: GpuRunner) -> None:
        measurement = runner.measure(self.good(runner)[0])
        assert measurement.sm_clock_mhz is not None
        assert measurement.sm_clock_mhz > 500
        assert measurement.flush_bytes >= 2 * runner.target.hardware.l2_bytes

    def test_another_process_on_the_gpu_is_an_error_not_a_sample(self) -> None:
        busy = "import torch; x = torch.zeros(1, device='cuda'); print('up', flush=True); input()"
        with (
            GpuRunner(run_limit_s=RUN_LIMIT_S) as own,
            subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
        ):
            assert other.stdout is not None
            other.stdout.readline()
            try:
                time.sleep(WATCH_S)
                with pytest.raises(MegatuneError, match="another process"):
                    own.measure(self.good(own)[-1])
            finally:
                other.kill()

    def test_a_gpu_that_is_not_there_is_one_line(self) -> None:
        with pytest.raises(MegatuneError, match="GPU 99"):
            GpuRunner(99)
