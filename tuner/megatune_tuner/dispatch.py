"""Jobs between the coordinator and whoever measures them: put into the queue, built, waited for.

What a job comes to is told in the order in which it was asked for, whichever worker is first. So proposals do not
depend on who measures how fast, and a campaign that was killed takes the way that it would have taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial

from sqlalchemy.orm import Session

from megatune_db import leases
from megatune_db import place
from megatune_db.leases import Answer
from megatune_db.leases import JobConfig
from megatune_db.leases import NewJob
from megatune_db.records import JobState
from megatune_db.records import Stage
from megatune_db.records import TrialState
from megatune_kernels.operator import Artifact
from megatune_kernels.space import Config
from megatune_tuner.bell import Bell
from megatune_tuner.cell import Proposal
from megatune_tuner.cell_run import CellRun
from megatune_tuner.engines.base import Engine
from megatune_tuner.ledger import Ledger
from megatune_tuner.measuring import Builds
from megatune_tuner.measuring import Job
from megatune_tuner.transactions import Transactions

FIRST_LOOK_S = 0.01
LOOK_S = 0.1
"""How often a wait looks for results of other processes, and whether it should end: less often while nothing comes."""
SWEEP_S = 2.0
"""How often leases are looked through for lost ones."""

CLOSED = (JobState.DONE, JobState.LOST)


@dataclass(eq=False)
class Work:
    """What is to be measured: one config, or finalists of one workload."""

    run: CellRun
    number: int
    reason: str
    configs: list[Config]
    proposal: Proposal | None = None
    """Of the cell; None for baselines and finalists."""
    stage: Stage = Stage.SEARCH
    answer: Answer | None = None
    is_old: bool = False
    """Whether an earlier process saw it answered."""
    jobs: list[Job] = field(default_factory=list)
    """The configs with what is built for them, until the job can be leased."""
    row: int = 0
    """Id of the job's row."""


class Dispatch:
    """The queue of a running campaign.

    :param answered: told of every answer that this process is the first to see.
    """

    def __init__(
        self,
        transactions: Transactions,
        ledger: Ledger,
        builds: Builds,
        engine: Engine,
        work: Bell,
        delivered: Bell,
        answered: Callable[[Work], None],
    ) -> None:
        self._transactions = transactions
        self._ledger = ledger
        self._builds = builds
        self._engine = engine
        self._work = work
        self._delivered = delivered
        self._answered = answered
        self._open: dict[int, Work] = {}
        """Works that are not answered, by row."""
        self._building: list[Work] = []
        self._artifacts: dict[str, Artifact] = {}
        self._swept_at = -SWEEP_S
        self.prompt = False
        """Whether every result may end a wait: otherwise those that come quickly are seen together."""

    def artifact(self, key: str) -> Artifact | None:
        """An artifact of a job that is in the works."""
        return self._artifacts.get(key)

    def put(self, works: Sequence[Work]) -> None:
        """Have works of one workload and stage measured, those that an earlier process did not see answered."""
        fresh = [work for work in works if not self._resume(work)]
        for work in fresh:
            work.jobs = [self._builds.job(work.run.workload, config) for config in work.configs]
        if fresh:
            for work, row in zip(fresh, self._insert(fresh), strict=True):
                work.row = row
                self._take_up(work)
            self._work.ring()

    def wait(self, works: Iterable[Work], until: Callable[[], bool]) -> bool:
        """Wait until all are answered; False when ``until`` says that this is no use.

        :raises Exception: what ended measuring for good.
        """
        waiting = [work for work in works if work.answer is None]
        look_s = FIRST_LOOK_S
        while waiting:
            rang, before = self._delivered.count, len(self._open)
            self._look()
            waiting = [work for work in waiting if work.answer is None]
            if not waiting:
                break
            if until():
                return False
            look_s = FIRST_LOOK_S if len(self._open) < before else min(2 * look_s, LOOK_S)
            needed = 1 if self._building or self.prompt else len(waiting)
            self._delivered.wait(rang + needed, LOOK_S if self._engine.rings else look_s)
        return True

    def settle(self, works: Iterable[Work]) -> None:
        """Take back what nobody measures yet, and wait for the rest."""
        self._transactions.write(lambda session: leases.withdraw(session, self._ledger.campaign_id))
        waiting = [work for work in works if work.answer is None]
        for work in self._building:
            self._open.pop(work.row, None)
        self._building.clear()
        while waiting:
            self._look()
            rows = [work.row for work in waiting if work.answer is None]
            measured_now = self._transactions.read(partial(leases.leased, jobs=rows))
            waiting = [work for work in waiting if work.answer is None and work.row in measured_now]
            if waiting:
                self._delivered.wait(self._delivered.count + 1, LOOK_S)
        self._look()
        self._open.clear()

    def _resume(self, work: Work) -> bool:
        """Take up what an earlier process has put into the queue; False where it has not."""
        if work.stage is Stage.SEARCH:
            trial = work.run.taken.get((work.number, work.configs[0].digest, work.reason))
            if trial is not None and trial.state in (TrialState.DONE, TrialState.LOST):
                state = JobState.DONE if trial.state is TrialState.DONE else JobState.LOST
                work.answer = Answer(0, state, trial.status, trial.median_us, 0.0, "")
                work.is_old = True
                return True
            if trial is None:
                return False
        found = work.run.jobs.get((work.stage, work.number))
        if found is None:
            return False
        work.row, state = found
        if state is JobState.LOST and not self._ledger.goes_on:
            # On a new way everything gets a new chance.
            self._transactions.write(lambda session: leases.reopen(session, work.row))
            state = JobState.WITHDRAWN
        if state in CLOSED:
            (work.answer,) = self._transactions.read(lambda session: leases.answers(session, [work.row]))
            work.is_old = True
            return True
        if state in (JobState.BUILDING, JobState.WITHDRAWN):
            work.jobs = [self._builds.job(work.run.workload, config) for config in work.configs]
            self._building.append(work)
        self._take_up(work)
        return True

    def _take_up(self, work: Work) -> None:
        self._open[work.row] = work
        if work not in self._building and any(job.builds for job in work.jobs):
            self._building.append(work)
        for job in work.jobs:
            for build in job.builds:
                build.add_done_callback(lambda _: self._delivered.ring())

    def _insert(self, works: Sequence[Work]) -> list[int]:
        tried = False

        def write(session: Session) -> list[int]:
            nonlocal tried
            run = works[0].run
            if tried:
                # The first try may have been kept without an answer.
                there = leases.jobs_of(
                    session, self._ledger.campaign_id, self._ledger.workload_id(session, run.workload)
                )
                if all((work.stage, work.number) in there for work in works):
                    return [there[work.stage, work.number][0] for work in works]
            tried = True
            states = [JobState.BUILDING if any(job.builds for job in work.jobs) else JobState.QUEUED for work in works]
            jobs = [self._new(session, work, work.jobs, built=False) for work in works]
            return leases.put_jobs(session, self._ledger.campaign_id, jobs, states)

        return self._transactions.write(write)

    def _new(self, session: Session, work: Work, jobs: Sequence[Job], *, built: bool) -> NewJob:
        configs = tuple(
            JobConfig(
                self._ledger.put_config(session, work.run.workload, job.config, work.run.space),
                job.config.digest,
                job.config.variant,
                dict(job.config.params),
                tuple(artifact.key for artifact in job.artifacts) if built else (),
                job.compile_s if built else 0.0,
                job.revision,
                None if job.runs is None else (job.runs.variant, dict(job.runs.params)),
            )
            for job in jobs
        )
        workload_id = self._ledger.workload_id(session, work.run.workload)
        return NewJob(workload_id, work.stage, work.number, work.reason, self._builds.regime, configs)

    def _look(self) -> None:
        """Bring what is known of all works up to date."""
        if self._building:
            self._make_ready()
        now = time.monotonic()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._sweep()
        else:
            self._engine.check()
        if self._open:
            rows = list(self._open)
            had_artifacts = False
            for answer in self._transactions.read(lambda session: leases.answers(session, rows)):
                work = self._open.pop(answer.job)
                work.answer = answer
                had_artifacts |= bool(work.jobs)
                work.jobs = []
                self._answered(work)
            if had_artifacts:
                self._forget_artifacts()

    def _forget_artifacts(self) -> None:
        """Keep those that works in the queue need; two can need the same."""
        jobs = [job for work in self._open.values() for job in work.jobs if job.is_built]
        needed = {artifact.key for job in jobs for artifact in job.artifacts}
        self._artifacts = {key: artifact for key, artifact in self._artifacts.items() if key in needed}

    def _make_ready(self) -> None:
        built = [work for work in self._building if all(job.is_built for job in work.jobs)]
        if not built:
            return
        campaign_id = self._ledger.campaign_id

        def write(session: Session) -> None:
            for work in built:
                good = [job for job in work.jobs if self._builds.failed(job) is None]
                if good:
                    for job in good:
                        self._ledger.put_artifacts(session, job.artifacts)
                    leases.make_ready(session, campaign_id, work.row, self._new(session, work, good, built=True))
                elif work.stage is Stage.SEARCH:
                    failed = self._builds.failed(work.jobs[0])
                    assert failed is not None
                    new = self._new(session, work, work.jobs, built=True)
                    leases.close(session, campaign_id, work.row, new, failed)

        for work in built:
            for job in work.jobs:
                self._artifacts |= {artifact.key: artifact for artifact in job.artifacts}
            if work.stage is Stage.FINAL:
                work.configs = [job.config for job in work.jobs if self._builds.failed(job) is None]
                if not work.configs:
                    # There is nothing to compare.
                    work.answer = Answer(work.row, JobState.WITHDRAWN, None, None, 0.0, "")
                    self._open.pop(work.row)
        self._transactions.write(write)
        self._building = [work for work in self._building if work not in built]
        self._work.ring()

    def _sweep(self) -> None:
        """Give out again what was leased by workers that are gone."""
        campaign_id = self._ledger.campaign_id
        gone = set(self._engine.check())
        held = self._transactions.read(lambda session: leases.holders(session, campaign_id))
        gone |= {worker for worker, where in held.items() if place.is_gone(where)}
        if held:
            lost: int = self._transactions.write(lambda session: leases.expire(session, campaign_id, gone))
            if lost:
                self._work.ring()
