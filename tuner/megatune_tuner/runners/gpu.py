"""Runner ``gpu``: measures on one GPU of this machine, in a worker process that can be killed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC
from datetime import datetime
from importlib.util import find_spec

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import Target
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.child import ChildLostError
from megatune_tuner.workers.gpu_messages import Describe
from megatune_tuner.workers.gpu_messages import Final
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from megatune_tuner.workers.gpu_messages import Search
from megatune_tuner.workers.gpu_messages import Start

RUN_LIMIT_S = 30.0
"""Limit of one measurement, which takes milliseconds; the operands of a new workload take a few seconds."""
START_LIMIT_S = 180.0
ENDS_ALL = (Status.CRASH, Status.HANG)
"""Statuses of a finalist that may have cost the others theirs."""
RECYCLE_AFTER = 4000
"""Measurements after which the worker is replaced, so that what it may leak stays small."""


class GpuRunner(Runner):
    """One worker process on one GPU."""

    provenance = Provenance.MEASURED
    needs_artifacts = True

    def __init__(self, device: int = 0, *, run_limit_s: float = RUN_LIMIT_S) -> None:
        """:raises MegatuneError: where nothing can be measured, with what is missing."""
        for module, package in (("torch", "torch"), ("cuda.core", "cuda-core"), ("cuda.bindings", "cuda-python")):
            if _missing(module):
                raise MegatuneError(f"{package} is not installed: pip install 'megatune[gpu]'")
        self._child = Child("megatune_tuner.workers.gpu", str(device))
        self._run_limit_s = run_limit_s
        self._order = random.Random(0)
        try:
            described: tuple[Target, float] = self._child.call(Describe(), START_LIMIT_S)
        except ChildLostError as lost:
            raise MegatuneError(f"cannot use GPU {device}: {lost}; see megatune doctor") from lost
        except BaseException:
            self._child.close()
            raise
        self._target, self.copy_bytes_a_us = described

    @property
    def target(self) -> Target:
        return self._target

    @property
    def facts(self) -> dict[str, float]:
        return {"copy_bytes_a_us": self.copy_bytes_a_us}

    def measure(self, request: Request) -> Measurement:
        return self._measurement(request, self._search(_job(request)), Stage.SEARCH, uuid.uuid4().hex)

    def finalists(self, requests: Sequence[Request]) -> list[Measurement]:
        jobs = [_job(request) for request in requests]
        outcomes = self._final(jobs)
        if any(outcome.status in ENDS_ALL for outcome in outcomes):
            # One took the others along: who it was shows when each runs alone, and the rest is measured again.
            alone = [self._search(job) for job in jobs]
            good = [i for i, outcome in enumerate(alone) if outcome.status is Status.OK]
            if good and len(good) < len(jobs):
                outcomes = alone
                for i, outcome in zip(good, self._final([jobs[i] for i in good]), strict=True):
                    outcomes[i] = outcome
        session = uuid.uuid4().hex
        pairs = zip(requests, outcomes, strict=True)
        return [self._measurement(request, outcome, Stage.FINAL, session) for request, outcome in pairs]

    def close(self) -> None:
        self._child.close()

    def _search(self, job: Job) -> Outcome:
        self._start()
        try:
            outcome: Outcome = self._child.call(Search(job), self._run_limit_s)
        except ChildLostError as lost:
            return _lost(lost, self._run_limit_s)
        if outcome.poisoned:
            self._child.close()
        return outcome

    def _final(self, jobs: Sequence[Job]) -> list[Outcome]:
        self._start()
        limit = self._run_limit_s * max(1, len(jobs))
        try:
            outcomes: list[Outcome] = self._child.call(Final(tuple(jobs), self._order.getrandbits(32)), limit)
        except ChildLostError as lost:
            return [_lost(lost, limit)] * len(jobs)
        if any(outcome.poisoned for outcome in outcomes):
            self._child.close()
        return outcomes

    def _start(self) -> None:
        """See that there is a worker, a new one after many measurements.

        :raises MegatuneError: when none can use the GPU any more: no config would be measured.
        """
        if self._child.calls >= RECYCLE_AFTER:
            self._child.close()
        if not self._child.is_alive:
            try:
                self._child.call(Start(), START_LIMIT_S)
            except ChildLostError as lost:
                raise MegatuneError(f"cannot use the GPU any more: {lost}; see megatune doctor") from lost

    def _measurement(self, request: Request, outcome: Outcome, stage: Stage, session: str) -> Measurement:
        figures = median_interval(outcome.samples_us) if outcome.status is Status.OK else None
        return Measurement(
            workload=request.workload.digest,
            config=request.config.digest,
            target=self._target.digest,
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
            artifact=request.artifact.key if request.artifact else "",
        )


def _missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _job(request: Request) -> Job:
    regime = request.regime
    return Job(
        request.workload,
        request.config,
        request.artifact,
        cold=regime.weights == "cold",
        graph=regime.execution == "graph",
    )


def _lost(lost: ChildLostError, limit_s: float) -> Outcome:
    return Outcome(Status.HANG if lost.hung else Status.CRASH, str(lost), measure_s=limit_s if lost.hung else 0.0)
