"""What every runner must do, as a class that a test of each runner inherits."""

from __future__ import annotations

import math
from abc import ABC
from abc import abstractmethod

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner

COLD_GRAPH = Regime("cold", "graph")
WORKLOAD = operator("projection").workload({"n": 256, "k": 512}, 4)
FAULTY_SIZE = 1 << 16
BASELINE = Config.of("cublas", {})


class RunnerContract(ABC):
    """Subclasses give the fixture ``runner`` and the requests that this runner can answer."""

    provenance: Provenance
    failures: tuple[Status, ...]
    """Statuses that ``failing`` can make."""

    @abstractmethod
    def good(self, runner: Runner) -> list[Request]:
        """At least two requests of one workload that succeed, the baseline last."""

    @abstractmethod
    def failing(self, runner: Runner, status: Status) -> Request:
        """A request that ends with that status."""

    def check(self, measurement: Measurement, request: Request, runner: Runner) -> None:
        assert measurement.workload == request.workload.digest
        assert measurement.config == request.config.digest
        assert measurement.regime == request.regime
        assert measurement.target == runner.target.digest
        assert measurement.provenance is self.provenance
        if measurement.status is Status.OK:
            assert measurement.median_us is not None
            assert math.isclose(measurement.median_us, median_interval(measurement.samples_us).median, rel_tol=1e-6)
            assert all(0 < sample < 1e6 for sample in measurement.samples_us)

    def test_a_good_config_is_measured(self, runner: Runner) -> None:
        for request in self.good(runner):
            measurement = runner.measure(request)
            self.check(measurement, request, runner)
            assert (measurement.status, measurement.reason) == (Status.OK, "")
            assert measurement.stage is Stage.SEARCH
            assert len(measurement.samples_us) >= 6

    def test_a_failing_config_is_a_status_with_a_reason_and_the_runner_goes_on(self, runner: Runner) -> None:
        first = self.good(runner)[0]
        for status in self.failures:
            request = self.failing(runner, status)
            measurement = runner.measure(request)
            self.check(measurement, request, runner)
            assert measurement.status is status, measurement.reason
            assert measurement.reason
            assert runner.measure(first).status is Status.OK

    def test_finalists_are_paired_and_in_order(self, runner: Runner) -> None:
        requests = self.good(runner)
        measurements = runner.finalists(requests)
        assert len({measurement.session for measurement in measurements}) == 1
        assert len({len(measurement.samples_us) for measurement in measurements}) == 1
        for measurement, request in zip(measurements, requests, strict=True):
            self.check(measurement, request, runner)
            assert (measurement.status, measurement.stage) == (Status.OK, Stage.FINAL)

    def test_the_target_is_constant_and_survives_writing(self, runner: Runner) -> None:
        target = runner.target
        assert runner.target == target
        assert type(target).from_dict(target.to_dict()) == target

    def test_closing_twice_is_once(self, runner: Runner) -> None:
        runner.close()
        runner.close()
