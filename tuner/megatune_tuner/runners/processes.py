"""What runners share whose measurements are taken in processes that can be killed."""

from __future__ import annotations

import random
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC
from datetime import datetime
from importlib.util import find_spec

from megatune_db.records import Measurement
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.statistics import median_interval
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome

START_LIMIT_S = 180.0
"""Limit of the start of a process that imports torch and opens a GPU."""
ENDS_ALL = (Status.CRASH, Status.HANG)
"""Statuses of a finalist that may have cost the others theirs."""
RECYCLE_AFTER = 4000
"""Measurements after which processes are replaced, so that what they may leak stays small."""
PACKAGES = (("torch", "torch"), ("cuda.core", "cuda-core"), ("cuda.bindings", "cuda-python"))
"""Modules that the processes import, and what brings them."""


def require_packages() -> None:
    """:raises MegatuneError: when a package is missing without which nothing is measured."""
    for module, package in PACKAGES:
        if _missing(module):
            raise MegatuneError(f"{package} is not installed: pip install 'megatune[gpu]'")


class ProcessRunner(Runner):
    """Turns jobs into measurements; a subclass has them done in its processes."""

    needs_artifacts = True

    def __init__(self) -> None:
        self._order = random.Random(0)

    @abstractmethod
    def _search(self, job: Job) -> Outcome:
        """What became of one job; whatever it did to the processes, the next one can be measured."""

    @abstractmethod
    def _final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        """What became of jobs that were measured interleaved, in an order drawn from the seed."""

    def measure(self, request: Request) -> Measurement:
        return self._measurement(request, self._search(job_of(request)), Stage.SEARCH, uuid.uuid4().hex)

    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        jobs = [job_of(request) for request in requests]
        outcomes = self._final(jobs, self._order.getrandbits(32))
        if any(outcome.status in ENDS_ALL for outcome in outcomes):
            # One took the others along: who it was shows when each runs alone, and the rest is measured again.
            alone = [self._search(job) for job in jobs]
            good = [i for i, outcome in enumerate(alone) if outcome.status is Status.OK]
            if good:
                # Where all run alone it was none of them, or what they do beside one another, which shows again.
                outcomes = alone
                again = self._final([jobs[i] for i in good], self._order.getrandbits(32))
                for i, outcome in zip(good, again, strict=True):
                    outcomes[i] = outcome
        session = uuid.uuid4().hex
        pairs = zip(requests, outcomes, strict=True)
        return [self._measurement(request, outcome, Stage.FINAL, session) for request, outcome in pairs]

    def _measurement(self, request: Request, outcome: Outcome, stage: Stage, session: str) -> Measurement:
        figures = median_interval(outcome.samples_us) if outcome.status is Status.OK else None
        return Measurement(
            workload=request.workload.digest,
            config=request.config.digest,
            target=self.target.digest,
            regime=request.regime,
            stage=stage,
            status=outcome.status,
            provenance=self.provenance,
            session=session,
            measured_at=datetime.now(UTC).replace(tzinfo=None),
            samples_us=outcome.samples_us,
            throttled=outcome.throttled,
            median_us=figures.median if figures else None,
            low_us=figures.low if figures else None,
            high_us=figures.high if figures else None,
            launches_a_sample=outcome.launches,
            sm_clock_mhz=outcome.sm_clock_mhz,
            flush_bytes=outcome.flush_bytes,
            reason=outcome.reason,
            compile_s=request.compile_s,
            measure_s=outcome.measure_s,
            artifact=request.artifact_key,
            parts_us=outcome.parts_us,
        )


def job_of(request: Request) -> Job:
    """What a process needs to know of a request."""
    regime = request.regime
    return Job(
        request.workload,
        request.runs or request.config,
        request.artifact,
        cold=regime.weights == "cold",
        graph=regime.execution == "graph",
        parts=request.parts,
    )


def _missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True
