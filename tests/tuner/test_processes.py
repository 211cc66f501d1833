"""Finalists whose processes died: who it was, and what the others take beside one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from toy import TARGET

from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.processes import ProcessRunner
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome

FINE = Outcome(Status.OK, samples_us=(1.0,) * 7)
GONE = Outcome(Status.CRASH, "beside another that ended the context")


class Dying(ProcessRunner):
    """Whose processes die so many times in the midst of finalists, and always at the variant ``bad``."""

    provenance = Provenance.MEASURED

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    @property
    def target(self) -> Target:
        return TARGET

    def close(self) -> None:
        """Nothing is held."""

    def _search(self, job: Job) -> Outcome:
        return Outcome(Status.CRASH, "it was me") if job.config.variant == "bad" else FINE

    def _final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        bad = any(job.config.variant == "bad" for job in jobs)
        if self.left or bad:
            self.left = max(0, self.left - 1)
            return [GONE] * len(jobs)
        return [FINE] * len(jobs)


@pytest.mark.parametrize(
    ("times", "variants", "statuses"),
    [
        (0, ("a", "b"), [Status.OK, Status.OK]),
        # Something else was it: nothing is said against any of them.
        (1, ("a", "b"), [Status.OK, Status.OK]),
        (0, ("a", "bad", "b"), [Status.OK, Status.CRASH, Status.OK]),
        # It is what they do beside one another.
        (2, ("a", "b"), [Status.CRASH, Status.CRASH]),
    ],
)
def test_who_it_was_is_found_and_the_others_are_compared(
    times: int, variants: tuple[str, ...], statuses: list[Status]
) -> None:
    workload = Workload.of("toy", {"n": 8}, 1)
    requests = [Request(workload, Config.of(variant, {}), Regime(), None) for variant in variants]
    found = Dying(times).finalists(requests)
    assert [each.status for each in found] == statuses
    assert len({each.session for each in found}) == 1
