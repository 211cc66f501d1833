"""From a config to its measurement: the artifact built ahead, then the runner."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import Protocol

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.artifact import revision_of
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_kernels.target import architecture_of
from megatune_tuner.compiling import Built
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.stopping import Stop

POLL_S = 0.1
"""How often a wait for artifacts looks whether it should stop."""


Configs = Callable[[Workload], Iterable[Config]]
"""The configs of a workload that can be measured."""


class Builder(Protocol):
    """What builds artifacts ahead; ``megatune_tuner.compiling.CompilePool`` does."""

    @property
    def processes(self) -> int: ...

    def submit(self, operator: Operator, workload: Workload, config: Config) -> Future[Built]: ...


@dataclass
class Job:
    """A config to measure, the artifacts of its kernels in the works or done; none where none are needed."""

    workload: Workload
    config: Config
    builds: tuple[Future[Built], ...] = ()
    """One for each of ``Operator.parts``."""
    runs: Config | None = None
    """What is launched in the config's name; None: the config itself."""

    @property
    def is_built(self) -> bool:
        return all(build.done() for build in self.builds)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts; none where none are needed or building one failed."""
        made = [build.result().artifact for build in self.builds]
        found = tuple(artifact for artifact in made if artifact is not None)
        return found if len(found) == len(made) else ()

    @property
    def compile_s(self) -> float:
        """Seconds that building took; parts that share an artifact share its build."""
        return sum(build.result().compile_s for build in set(self.builds))

    @property
    def revision(self) -> str | None:
        """Of the kernels that are built for it; None where none are."""
        return revision_of(operator(self.workload.operator)) if self.builds else None


class Bench(Protocol):
    """What is known of what measures, wherever it runs; every runner says it of itself."""

    @property
    def target(self) -> Target: ...

    @property
    def provenance(self) -> Provenance: ...

    @property
    def needs_artifacts(self) -> bool: ...


class Builds:
    """Has what configs need built ahead of their measurement."""

    def __init__(self, bench: Bench, regime: Regime, builder: Builder | None) -> None:
        """:raises ValueError: when artifacts are needed and nothing builds them."""
        if bench.needs_artifacts and builder is None:
            raise ValueError("this runner needs artifacts: give a builder")
        self.regime = regime
        self._bench = bench
        self._builder = builder if bench.needs_artifacts else None

    @property
    def ahead(self) -> int:
        """Jobs that should be in the works, so that none of the builder's processes waits for one."""
        return 2 * self._builder.processes if self._builder is not None else 0

    def job(self, workload: Workload, config: Config) -> Job:
        """Start building what the config needs; what a library launches needs nothing.

        :raises MegatuneError: when nothing can be built here.
        """
        if self._builder is None:
            return Job(workload, config)
        tuned = operator(workload.operator)
        runs = tuned.stands_for(workload, config, architecture_of(self._bench.target.hardware))
        parts = tuned.parts(workload, runs)
        builds = [self._builder.submit(operator(part.workload.operator), part.workload, part.config) for part in parts]
        return Job(workload, config, tuple(builds), runs)

    def failed(self, job: Job) -> Measurement | None:
        """The measurement of a job whose artifacts could not be built, once they have been tried; None for others."""
        built = next((each for each in (b.result() for b in job.builds) if each.status is not Status.OK), None)
        if built is None:
            return None
        request = Request(job.workload, job.config, self.regime, compile_s=built.compile_s)
        failed = not_built(request, built.status, built.reason, self._bench.target, self._bench.provenance)
        return _of_revision(failed, job)


class Meter(Builds):
    """Measures jobs on a runner of this process, and adds up for how long that was busy."""

    def __init__(self, runner: Runner, regime: Regime, builder: Builder | None) -> None:
        """:raises ValueError: when the runner needs artifacts and nothing builds them."""
        super().__init__(runner, regime, builder)
        self._runner = runner
        self.measuring_s = 0.0

    def measure(self, job: Job) -> Measurement:
        """Measure to search; waits for the artifact. A build that failed is a measurement with its status."""
        failed = self.failed(job)
        if failed is not None:
            return failed
        measurement = self._runner.measure(self._request(job))
        self.measuring_s += measurement.measure_s
        return _of_revision(measurement, job)

    def finalists(self, jobs: Sequence[Job]) -> list[tuple[Job, Measurement]]:
        """Measure jobs of one workload again, interleaved; waits for artifacts, leaves out what has none."""
        built = [job for job in jobs if self.failed(job) is None]
        if not built:
            return []
        measurements = self._runner.finalists([self._request(job) for job in built])
        # The runner is busy with all of them at once, so that the times overlap.
        self.measuring_s += max((measurement.measure_s for measurement in measurements), default=0.0)
        return [(job, _of_revision(measurement, job)) for job, measurement in zip(built, measurements, strict=True)]

    def _request(self, job: Job) -> Request:
        return request(job.workload, job.config, self.regime, job.artifacts, job.compile_s, job.runs)


def request(
    workload: Workload,
    config: Config,
    regime: Regime,
    artifacts: Sequence[Artifact],
    compile_s: float,
    runs: Config | None,
) -> Request:
    """What a runner is asked to measure; the artifacts are those of the config's parts."""
    if len(artifacts) > 1 or operator(workload.operator).uses:
        return Request(workload, config, regime, None, compile_s, tuple(artifacts))
    return Request(workload, config, regime, next(iter(artifacts), None), compile_s, runs=runs)


def not_built(request: Request, status: Status, reason: str, target: Target, provenance: Provenance) -> Measurement:
    """The measurement of a config whose artifacts there are not, with what building them gave."""
    return Measurement(
        workload=request.workload.digest,
        config=request.config.digest,
        target=target.digest,
        regime=request.regime,
        stage=Stage.SEARCH,
        status=status,
        provenance=provenance,
        session=uuid.uuid4().hex,
        measured_at=datetime.now(UTC).replace(tzinfo=None),
        reason=reason,
        compile_s=request.compile_s,
    )


def _of_revision(measurement: Measurement, job: Job) -> Measurement:
    """The measurement with the revision of the kernels that were built for it; as it is where none were."""
    return measurement if job.revision is None else replace(measurement, revision=job.revision)


def wait_for_builds(jobs: Iterable[Job], stop: Stop) -> bool:
    """Wait until every artifact is built or failed; False when a stop was requested meanwhile."""
    waiting = {build for job in jobs for build in job.builds if not build.done()}
    while waiting and not stop.requested:
        _, waiting = concurrent.futures.wait(waiting, timeout=POLL_S)
    return not waiting
