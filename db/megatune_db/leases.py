"""The queue of a campaign: jobs that workers lease, measure and answer.

A lease ends with a result, or when its worker has not renewed it in time by the database's clock. A job whose lease was
lost is given out again ``GIVEN_AGAIN`` times and is then lost itself, which says nothing of its config. A config that
brings down what measures it is tried once more; the second time it is quarantined: what it did is its measurement.

Every result is taken once. It is named by job and attempt, closing the job and keeping the measurement are one
transaction, and whoever comes second is counted and ignored. Functions leave the commit to their caller.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from sqlalchemy import case
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlalchemy.orm import aliased

from megatune_db import place
from megatune_db import store
from megatune_db.clock import database_now
from megatune_db.models import Job
from megatune_db.models import Measurement as Row
from megatune_db.models import Trial
from megatune_db.models import Worker
from megatune_db.records import JobState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState

LEASE_S = 30.0
"""Seconds for which a lease holds without being renewed."""
GIVEN_AGAIN = 2
"""How often a job is given out again after its lease was lost."""
STRIKES = 2
"""How often a config may bring down what measures it before it is quarantined."""
BRINGS_DOWN = (Status.HANG, Status.CRASH)
OPEN = (JobState.QUEUED, JobState.LEASED, JobState.WITHDRAWN)
"""States in which a result is taken: one of a lost lease, or that nobody waits for, is as good as any."""


@dataclass(frozen=True)
class JobConfig:
    """A config to measure."""

    id: int
    digest: str
    variant: str
    params: dict[str, Any]
    artifacts: tuple[str, ...] = ()
    """Keys, in the order of the operator's parts; none for what needs none."""
    compile_s: float = 0.0
    revision: str | None = None
    """Of the kernels that the artifacts are of; None where the runner says it."""
    runs: tuple[str, dict[str, Any]] | None = None
    """Variant and parameters of what is launched in the config's name; None: the config itself."""


@dataclass(frozen=True)
class NewJob:
    """What is to be measured: one config to search, or several finalists interleaved."""

    workload_id: int
    stage: Stage
    number: int
    reason: str
    """Of the trials."""
    regime: Regime
    configs: tuple[JobConfig, ...]

    @property
    def content(self) -> dict[str, Any]:
        return {"regime": str(self.regime), "reason": self.reason, "configs": [asdict(each) for each in self.configs]}


@dataclass(frozen=True)
class Lease:
    """A job that a worker has taken on, until it delivers or the lease is lost."""

    job: int
    attempt: int
    campaign_id: int
    worker_id: int
    what: NewJob


@dataclass(frozen=True)
class Answer:
    """What became of a job."""

    job: int
    state: JobState
    status: Status | None
    """Of its measurement; None where it has none."""
    median_us: float | None
    measure_s: float
    reason: str


class Receipt(enum.Enum):
    """What became of a result."""

    TAKEN = enum.auto()
    AGAIN = enum.auto()
    """The config brought down what measured it, and is tried once more."""
    IGNORED = enum.auto()
    """There is a result already, or the job was given up."""


def add_worker(
    session: Session, *, campaign_id: int, target: str, provenance: Provenance, needs_artifacts: bool
) -> int:
    """The id of a worker that begins: this process.

    :param target: digest.
    :raises LookupError: when the target has not been put.
    """
    now = session.scalar(select(database_now()))
    values = {
        "campaign_id": campaign_id,
        "place": place.here(),
        "target_id": store.target_id(session, target),
        "provenance": provenance,
        "needs_artifacts": needs_artifacts,
        "started_at": now,
        "seen_at": now,
        "ended": "",
    }
    found: int | None = session.scalar(insert(Worker).values(values).returning(Worker.id))
    assert found is not None
    return found


def end_worker(session: Session, worker_id: int, why: str) -> None:
    """The worker ends, and says why."""
    session.execute(update(Worker).where(Worker.id == worker_id).values(ended=why, seen_at=database_now()))


def put_jobs(session: Session, campaign_id: int, jobs: Sequence[NewJob], states: Sequence[JobState]) -> list[int]:
    """The ids of new jobs, in their order; what is searched is a trial from now on."""
    trials = [
        {
            "campaign_id": campaign_id,
            "workload_id": job.workload_id,
            "config_id": config.id,
            "number": job.number,
            "state": TrialState.ASKED,
            "reason": job.reason,
            "reused": False,
        }
        for job in jobs
        for config in job.configs
        if job.stage is Stage.SEARCH
    ]
    if trials:
        session.execute(insert(Trial), trials)
    rows = [
        {
            "campaign_id": campaign_id,
            "workload_id": job.workload_id,
            "stage": job.stage,
            "number": job.number,
            "state": state,
            "content": job.content,
            "attempt": 0,
            "failures": 0,
            "strikes": 0,
            "evidence": [],
            "ignored": 0,
        }
        for job, state in zip(jobs, states, strict=True)
    ]
    return list(session.scalars(insert(Job).returning(Job.id, sort_by_parameter_order=True), rows)) if rows else []


def jobs_of(session: Session, campaign_id: int, workload_id: int) -> dict[tuple[Stage, int], tuple[int, JobState]]:
    """Id and state of the workload's jobs, by stage and number."""
    query = select(Job.stage, Job.number, Job.id, Job.state).where(
        Job.campaign_id == campaign_id, Job.workload_id == workload_id
    )
    return {(row.stage, row.number): (row.id, row.state) for row in session.execute(query)}


def make_ready(session: Session, campaign_id: int, job_id: int, job: NewJob) -> None:
    """The job can be leased: its artifacts are built, or are there again."""
    waits = (Job.id == job_id) & Job.state.in_((JobState.BUILDING, JobState.WITHDRAWN))
    session.execute(update(Job).where(waits).values(state=JobState.QUEUED, content=job.content))
    if job.stage is Stage.SEARCH:
        trial = _trial(campaign_id, job.workload_id, job.number, job.configs[0].id, job.reason)
        asked = update(Trial).where(*trial, Trial.state == TrialState.STALE).values(state=TrialState.ASKED)
        session.execute(asked)


def reopen(session: Session, job_id: int) -> None:
    """A job that was given up is to be tried after all, once it is made ready."""
    lost = (Job.id == job_id) & (Job.state == JobState.LOST)
    session.execute(update(Job).where(lost).values(state=JobState.WITHDRAWN, failures=Job.strikes))


def claim(
    session: Session, worker_id: int, campaign_id: int, lease_s: float = LEASE_S, *, near: int | None = None
) -> Lease | None:
    """Lease the oldest job that waits; None where none does.

    :param near: id of a workload whose jobs come first, because its operands are there; those of workloads that other
        workers measure come last.
    """
    busy = select(_other.workload_id).where(_other.campaign_id == campaign_id, _other.state == JobState.LEASED)
    order = case((Job.workload_id == (near or 0), 0), (Job.workload_id.in_(busy), 2), else_=1)
    # PostgreSQL passes over jobs that others are just taking; in SQLite one transaction writes at a time.
    oldest = (
        select(Job.id)
        .where(Job.campaign_id == campaign_id, Job.state == JobState.QUEUED)
        .order_by(order, Job.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    changed = {
        "state": JobState.LEASED,
        "attempt": Job.attempt + 1,
        "worker_id": worker_id,
        "expires_at": database_now() + lease_s,
    }
    taken = update(Job).where(Job.id == oldest).values(changed).execution_options(synchronize_session=False)
    return _lease(session.execute(taken.returning(*_LEASED)).first())


def mine(session: Session, worker_id: int, campaign_id: int) -> Lease | None:
    """The lease that the worker has: one whose transaction was committed although nobody could say so."""
    held = (Job.campaign_id == campaign_id) & (Job.state == JobState.LEASED) & (Job.worker_id == worker_id)
    return _lease(session.execute(select(*_LEASED).where(held)).first())


def renew(session: Session, worker_id: int, campaign_id: int, lease_s: float = LEASE_S) -> None:
    """The worker is there: what it leases holds for as long again."""
    held = (Job.campaign_id == campaign_id) & (Job.state == JobState.LEASED) & (Job.worker_id == worker_id)
    session.execute(update(Job).where(held).values(expires_at=database_now() + lease_s))
    session.execute(update(Worker).where(Worker.id == worker_id).values(seen_at=database_now()))


def give_back(session: Session, lease: Lease) -> None:
    """The worker will not measure it after all; nothing is held against the job."""
    held = (Job.id == lease.job) & (Job.state == JobState.LEASED) & (Job.attempt == lease.attempt)
    session.execute(update(Job).where(held).values(state=JobState.QUEUED, worker_id=None, expires_at=None))


def finish(session: Session, lease: Lease, measurements: Sequence[Measurement]) -> Receipt:
    """Take the result of a job: one measurement for each of its configs.

    :raises LookupError: when the target has not been put.
    """
    taken = list(measurements)
    if lease.what.stage is Stage.SEARCH and taken[0].status in BRINGS_DOWN:
        before = _strike(session, lease, taken[0])
        if before is None:
            return Receipt.AGAIN
        taken[0] = replace(taken[0], reason="; ".join([f"quarantined: {taken[0].reason}", *before]))
    # The job is closed first: of two that deliver at once, the second waits here and then finds it closed.
    is_open = (Job.id == lease.job) & Job.state.in_(OPEN)
    closed = update(Job).where(is_open).values(state=JobState.DONE, worker_id=lease.worker_id, expires_at=None)
    if session.scalar(closed.returning(Job.id)) is None:
        session.execute(update(Job).where(Job.id == lease.job).values(ignored=Job.ignored + 1))
        return Receipt.IGNORED
    _keep(session, lease.job, lease.campaign_id, lease.what, taken)
    return Receipt.TAKEN


def close(session: Session, campaign_id: int, job_id: int, job: NewJob, measurement: Measurement) -> None:
    """Answer a job that no worker is needed for: what could not be built, say."""
    waits = (Job.id == job_id) & Job.state.in_((JobState.BUILDING, JobState.WITHDRAWN))
    if session.scalar(update(Job).where(waits).values(state=JobState.DONE).returning(Job.id)) is not None:
        _keep(session, job_id, campaign_id, job, [measurement])


def fail(session: Session, lease: Lease, why: str) -> None:
    """The worker could not measure for reasons of its own: a lost lease that nobody has to wait for."""
    _lose(session, lease.campaign_id, Job.attempt == lease.attempt, why, job=lease.job)


def expire(session: Session, campaign_id: int, gone: Collection[int] = ()) -> int:
    """End the leases of workers that have not renewed them, and of those that are ``gone``; how many there were."""
    late = _lose(session, campaign_id, Job.expires_at < database_now(), "its worker was not heard of in time")
    return late + (_lose(session, campaign_id, Job.worker_id.in_(gone), "its worker has ended") if gone else 0)


def holders(session: Session, campaign_id: int) -> dict[int, str]:
    """The places of the workers that hold leases, by id."""
    held = (Job.campaign_id == campaign_id) & (Job.state == JobState.LEASED)
    query = select(Worker.id, Worker.place).join(Job, Job.worker_id == Worker.id).where(held)
    return {row.id: row.place for row in session.execute(query)}


def waiting(session: Session) -> dict[int, int]:
    """How many jobs wait for a worker, by id of the campaign."""
    query = select(Job.campaign_id, func.count()).where(Job.state == JobState.QUEUED).group_by(Job.campaign_id)
    return {row[0]: row[1] for row in session.execute(query)}


def leased(session: Session, jobs: Collection[int]) -> set[int]:
    """Those of the jobs that a worker is at."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(jobs), Job.state == JobState.LEASED)))


def withdraw(session: Session, campaign_id: int) -> None:
    """Nobody waits for what is not leased any more."""
    waits = (Job.campaign_id == campaign_id) & Job.state.in_((JobState.BUILDING, JobState.QUEUED))
    session.execute(update(Job).where(waits).values(state=JobState.WITHDRAWN))


def answers(session: Session, jobs: Collection[int]) -> list[Answer]:
    """What became of those of the jobs that are closed."""
    query = (
        select(Job.id, Job.state, Row.status, Row.median_us, Row.measure_s, Row.reason, Job.evidence)
        .outerjoin(Row, Row.id == Job.measurement_id)
        .where(Job.id.in_(jobs), Job.state.in_((JobState.DONE, JobState.LOST)))
        .order_by(Job.id)
    )
    return [
        Answer(
            row.id,
            row.state,
            row.status,
            row.median_us,
            row.measure_s or 0.0,
            row.reason if row.reason is not None else "; ".join(_said(row.evidence)),
        )
        for row in session.execute(query)
    ]


_other = aliased(Job)
_LEASED = (Job.id, Job.attempt, Job.campaign_id, Job.worker_id, Job.workload_id, Job.stage, Job.number, Job.content)


def _lease(row: Any) -> Lease | None:
    if row is None:
        return None
    configs = tuple(
        # JSON has no tuples.
        JobConfig(**{**each, "artifacts": tuple(each["artifacts"]), "runs": each["runs"] and tuple(each["runs"])})
        for each in row.content["configs"]
    )
    regime = Regime.parse(row.content["regime"])
    job = NewJob(row.workload_id, row.stage, row.number, row.content["reason"], regime, configs)
    return Lease(row.id, row.attempt, row.campaign_id, row.worker_id, job)


def _strike(session: Session, lease: Lease, measurement: Measurement) -> list[str] | None:
    """What the config did before, when this is enough to blame it; None when it gets another try, and waits for it."""
    row = session.execute(
        select(Job.state, Job.strikes, Job.evidence).where(Job.id == lease.job).with_for_update()
    ).one()
    if any(failure["attempt"] == lease.attempt and failure["strike"] for failure in row.evidence):
        return None if row.state is not JobState.DONE else []
    if row.state not in OPEN:
        return []
    strikes = row.strikes + 1
    blamed = strikes >= STRIKES
    failure = _failure(lease.attempt, lease.worker_id, f"{measurement.status}: {measurement.reason}", strike=True)
    changed: dict[str, Any] = {
        "strikes": strikes,
        "failures": Job.failures + 1,
        "evidence": [*row.evidence, failure],
    }
    if not blamed:
        changed |= {"state": JobState.QUEUED, "worker_id": None, "expires_at": None}
    session.execute(update(Job).where(Job.id == lease.job).values(changed))
    return _said(row.evidence) if blamed else None


def _lose(session: Session, campaign_id: int, which: Any, why: str, *, job: int | None = None) -> int:
    query = select(
        Job.id, Job.attempt, Job.failures, Job.strikes, Job.evidence, Job.worker_id, Job.workload_id, Job.stage,
        Job.number, Job.content,
    ).where(Job.campaign_id == campaign_id, Job.state == JobState.LEASED, which)  # fmt: skip
    if job is not None:
        query = query.where(Job.id == job)
    rows = session.execute(query.with_for_update(skip_locked=True)).all()
    for row in rows:
        losses = row.failures - row.strikes + 1
        given_up = losses > GIVEN_AGAIN
        session.execute(
            update(Job)
            .where(Job.id == row.id, Job.state == JobState.LEASED, Job.attempt == row.attempt)
            .values(
                state=JobState.LOST if given_up else JobState.QUEUED,
                failures=Job.failures + 1,
                evidence=[*row.evidence, _failure(row.attempt, row.worker_id, why, strike=False)],
                worker_id=None,
                expires_at=None,
            )
        )
        if given_up and row.stage is Stage.SEARCH:
            for config in row.content["configs"]:
                trial = _trial(campaign_id, row.workload_id, row.number, config["id"], row.content["reason"])
                session.execute(update(Trial).where(*trial).values(state=TrialState.LOST))
    return len(rows)


def _failure(attempt: int, worker: int | None, reason: str, *, strike: bool) -> dict[str, Any]:
    return {"attempt": attempt, "worker": worker, "reason": reason, "strike": strike}


def _said(evidence: Sequence[dict[str, Any]]) -> list[str]:
    return [f"attempt {each['attempt']} (worker {each['worker']}): {each['reason']}" for each in evidence]


def _keep(session: Session, job_id: int, campaign_id: int, job: NewJob, measurements: Sequence[Measurement]) -> None:
    target = store.target_id(session, measurements[0].target)
    first: int | None = None
    for config, measurement in zip(job.configs, measurements, strict=True):
        ids = {"workload_id": job.workload_id, "config_id": config.id, "target_id": target}
        found = store.add_measurement_of(session, ids, measurement)
        first = first or found
        done = {"state": TrialState.DONE, "measurement_id": found, "reused": False}
        if job.stage is Stage.SEARCH:
            trial = _trial(campaign_id, job.workload_id, job.number, config.id, job.reason)
            session.execute(update(Trial).where(*trial).values(done))
        else:
            key = {
                "campaign_id": campaign_id,
                "workload_id": job.workload_id,
                "number": job.number,
                "config_id": config.id,
                "reason": job.reason,
            }
            session.execute(insert(Trial).values(key | done))
    session.execute(update(Job).where(Job.id == job_id).values(measurement_id=first))


def _trial(campaign_id: int, workload_id: int, number: int, config_id: int, reason: str) -> tuple[Any, ...]:
    return (
        Trial.campaign_id == campaign_id,
        Trial.workload_id == workload_id,
        Trial.number == number,
        Trial.config_id == config_id,
        Trial.reason == reason,
    )
