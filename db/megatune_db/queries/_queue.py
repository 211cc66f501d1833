"""What the queue of a campaign knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import HAS_FAILED
from megatune_db.models import Campaign
from megatune_db.models import Job
from megatune_db.models import Workload
from megatune_db.records import JobState
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
