"""From a config to its measurement: the artifact built ahead, then the runner."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import Protocol

from megatune_db.records import Measurement
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.artifact import source_digest
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.compiling import Built
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.stopping import Stop

POLL_S = 0.1
"""How often a wait for artifacts looks whether it should stop."""


class Builder(Protocol):
    """What builds artifacts ahead; ``megatune_tuner.compiling.CompilePool`` does."""

    @property
    def processes(self) -> int: ...

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]: ...


@dataclass
class Job:
    """A config to measure, its artifact in the works or done; ``build`` is None where none is needed."""

    workload: Workload
    config: Config
    build: Future[Built] | None

    @property
    def is_built(self) -> bool:
        return self.build is None or self.build.done()

    @property
    def artifact(self) -> Artifact | None:
        """The artifact; None where none is needed or building it failed."""
        return None if self.build is None else self.build.result().artifact


class Meter:
    """Measures jobs on a runner, and adds up for how long that was busy."""

    def __init__(self, runner: Runner, regime: Regime, builder: Builder | None) -> None:
        """:raises ValueError: when the runner needs artifacts and nothing builds them."""
        if runner.needs_artifacts and builder is None:
            raise ValueError("this runner needs artifacts: give a builder")
        self._runner = runner
        self._regime = regime
        self._builder = builder if runner.needs_artifacts else None
        self.measuring_s = 0.0

    @property
    def ahead(self) -> int:
        """Jobs that should be in the works, so that none of the builder's processes waits for one."""
        return 2 * self._builder.processes if self._builder is not None else 0

    def job(self, workload: Workload, config: Config) -> Job:
        """Start building what the config needs. Baselines need nothing.

        :raises MegatuneError: when nothing can be built here.
        """
        tuned = operator(workload.operator)
        if self._builder is None or config.variant in tuned.baselines:
            return Job(workload, config, None)
        return Job(workload, config, self._builder.submit(tuned, workload, config))

    def measure(self, job: Job) -> Measurement:
        """Measure to search; waits for the artifact. A build that failed is a measurement with its status."""
        failed = self._failed(job)
        if failed is not None:
            return failed
        measurement = self._runner.measure(self._request(job))
        self.measuring_s += measurement.measure_s
        return _of_revision(measurement, job)

    def finalists(self, jobs: Sequence[Job]) -> list[tuple[Job, Measurement]]:
        """Measure jobs of one workload again, interleaved; waits for artifacts, leaves out what has none."""
        built = [job for job in jobs if self._failed(job) is None]
        if not built:
            return []
        measurements = self._runner.finalists([self._request(job) for job in built])
        # The runner is busy with all of them at once, so that the times overlap.
        self.measuring_s += max((measurement.measure_s for measurement in measurements), default=0.0)
        return [(job, _of_revision(measurement, job)) for job, measurement in zip(built, measurements, strict=True)]

    def _request(self, job: Job) -> Request:
        compile_s = job.build.result().compile_s if job.build is not None else 0.0
        return Request(job.workload, job.config, self._regime, job.artifact, compile_s)

    def _failed(self, job: Job) -> Measurement | None:
        built = job.build.result() if job.build is not None else None
        if built is None or built.status is Status.OK:
            return None
        failed = Measurement(
            workload=job.workload.digest,
            config=job.config.digest,
            target=self._runner.target.digest,
            regime=self._regime,
            stage=Stage.SEARCH,
            status=built.status,
            provenance=self._runner.provenance,
            session=uuid.uuid4().hex,
            measured_at=datetime.now(UTC).replace(tzinfo=None),
            reason=built.reason,
            compile_s=built.compile_s,
        )
        return _of_revision(failed, job)


def _of_revision(measurement: Measurement, job: Job) -> Measurement:
    """The measurement with the revision of the kernels that were built for it; as it is where none were."""
    if job.build is None:
        return measurement
    return replace(measurement, revision=source_digest(type(operator(job.workload.operator))))


def wait_for_builds(jobs: Iterable[Job], stop: Stop) -> bool:
    """Wait until every artifact is built or failed; False when a stop was requested meanwhile."""
    waiting = {job.build for job in jobs if job.build is not None and not job.build.done()}
    while waiting and not stop.requested:
        _, waiting = concurrent.futures.wait(waiting, timeout=POLL_S)
    return not waiting
