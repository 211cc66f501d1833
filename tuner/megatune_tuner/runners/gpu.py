"""Runner ``gpu``: measures on one GPU of this machine, in a worker process that can be killed."""

from __future__ import annotations

from collections.abc import Sequence

from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target
from megatune_tuner.runners.processes import RECYCLE_AFTER
from megatune_tuner.runners.processes import START_LIMIT_S
from megatune_tuner.runners.processes import ProcessRunner
from megatune_tuner.runners.processes import require_packages
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


class GpuRunner(ProcessRunner):
    """One worker process on one GPU."""

    provenance = Provenance.MEASURED

    def __init__(self, device: int = 0, *, run_limit_s: float = RUN_LIMIT_S) -> None:
        """:raises MegatuneError: where nothing can be measured, with what is missing."""
        super().__init__()
        require_packages()
        self._child = Child("megatune_tuner.workers.gpu", str(device))
        self._run_limit_s = run_limit_s
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

    def _final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        self._start()
        limit = self._run_limit_s * max(1, len(jobs))
        try:
            outcomes: list[Outcome] = self._child.call(Final(tuple(jobs), seed), limit)
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


def _lost(lost: ChildLostError, limit_s: float) -> Outcome:
    return Outcome(Status.HANG if lost.hung else Status.CRASH, str(lost), measure_s=limit_s if lost.hung else 0.0)
