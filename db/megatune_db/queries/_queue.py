"""What the queue of a campaign knows, and who works it off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.clock import database_now
from megatune_db.models import HAS_FAILED
from megatune_db.models import Campaign
from megatune_db.models import Job
from megatune_db.models import Target
from megatune_db.models import Worker
from megatune_db.models import Workload
from megatune_db.records import JobState
from megatune_db.records import Provenance
from megatune_db.records import Stage


@dataclass(frozen=True)
class TroubledJob:
    """A job whose leases did not all give a measurement."""

    campaign: str
    operator: str
    shape: str
    tokens: int
    stage: Stage
    number: int
    configs: tuple[str, ...]
    """In words, e.g. ``simt block=64``."""
    state: JobState
    """``done`` where it was measured after all, ``lost`` where it was given up: infrastructure failed."""
    strikes: int
    """How often the config brought down what measures it; from ``leases.STRIKES`` on it is quarantined."""
    failures: tuple[dict[str, Any], ...]
    """Attempt, worker and reason of each lease that gave no measurement."""


@dataclass(frozen=True)
class WorkerRow:
    """A process that measures, or has measured, for a campaign."""

    id: int
    campaign: str
    place: str
    """The process, as ``place.here`` says it."""
    target: str
    """Digest."""
    provenance: Provenance
    ran_s: float
    """Seconds from its beginning to when it was last heard of."""
    silent_s: float
    """Seconds since it was last heard of, by the database's clock."""
    ended: str
    """Why it ended; empty while it has not said so."""
    leased: int
    """Jobs that it holds."""


def workers(session: Session, *, most: int = 200) -> list[WorkerRow]:
    """Who measures and who has measured, the latest first."""
    held = (
        select(func.count())
        .where(Job.campaign_id == Worker.campaign_id, Job.state == JobState.LEASED, Job.worker_id == Worker.id)
        .scalar_subquery()
    )
    query = (
        select(
            Worker.id,
            Campaign.name,
            Worker.place,
            Target.digest,
            Worker.provenance,
            Worker.seen_at - Worker.started_at,
            database_now() - Worker.seen_at,
            Worker.ended,
            held,
        )
        .join(Campaign, Campaign.id == Worker.campaign_id)
        .join(Target, Target.id == Worker.target_id)
        .order_by(Worker.id.desc())
        .limit(most)
    )
    return [WorkerRow(*row) for row in session.execute(query)]


def troubled_jobs(session: Session, campaign_id: int | None = None) -> list[TroubledJob]:
    """What was lost, quarantined, or measured only when it was given out again; the oldest first.

    :param campaign_id: None for those of every campaign.
    """
    query = (
        select(Job, Campaign.name, Workload.operator, Workload.shape, Workload.tokens)
        .join(Campaign, Campaign.id == Job.campaign_id)
        .join(Workload, Workload.id == Job.workload_id)
        .where(HAS_FAILED)
        .order_by(Job.campaign_id, Job.id)
    )
    if campaign_id is not None:
        query = query.where(Job.campaign_id == campaign_id)
    return [
        TroubledJob(
            campaign,
            operator,
            shape,
            tokens,
            job.stage,
            job.number,
            tuple(map(_words, job.content["configs"])),
            job.state,
            job.strikes,
            tuple(job.evidence),
        )
        for job, campaign, operator, shape, tokens in session.execute(query)
    ]


def _words(config: dict[str, Any]) -> str:
    return " ".join([config["variant"], *(f"{name}={value}" for name, value in config["params"].items())])
