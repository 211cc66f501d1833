"""Campaigns, and how far they have come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Integer
from sqlalchemy import case
from sqlalchemy import distinct
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Campaign
from megatune_db.models import Config
from megatune_db.models import Measurement as Row
from megatune_db.models import Target
from megatune_db.models import Trial
from megatune_db.models import Workload
from megatune_db.queries._lookup import target_id
from megatune_db.queries._lookup import workload_id
from megatune_db.records import CampaignState
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState


@dataclass(frozen=True)
class CampaignRow:
    """A campaign and its progress."""

    id: int
    name: str
    file_text: str
    file_digest: str
    target: str | None
    """Digest."""
    state: CampaignState
    budget: dict[str, Any]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    measuring_s: float
    wall_s: float
    trials: dict[TrialState, int]
    reused: int
    """Trials whose measurement was there already."""
    workloads: int
    """Workloads with at least one trial."""
    statuses: dict[Status, int]
    """Distinct measurements by status."""


@dataclass(frozen=True)
class TrialRow:
    """A trial and what its measurement found; the figures are in microseconds."""

    workload: str
    config: str
    """Digests."""
    variant: str
    params: dict[str, Any]
    number: int
    state: TrialState
    reason: str
    """Who proposed the config."""
    reused: bool
    created_at: datetime
    measurement_id: int | None
    status: Status | None
    stage: Stage | None
    median_us: float | None
    low_us: float | None
    high_us: float | None
    id: int


def campaigns(session: Session) -> list[CampaignRow]:
    """Every campaign, the newest first."""
    query = select(Campaign, Target.digest).outerjoin(Target, Target.id == Campaign.target_id)
    return [_campaign(session, row, digest) for row, digest in session.execute(query.order_by(Campaign.id.desc()))]


def campaign(session: Session, name: str) -> CampaignRow | None:
    """The campaign of that name."""
    query = select(Campaign, Target.digest).outerjoin(Target, Target.id == Campaign.target_id)
    found = session.execute(query.where(Campaign.name == name)).first()
    return None if found is None else _campaign(session, found[0], found[1])


def status_counts(session: Session, campaign_id: int) -> dict[Status, int]:
    """How many distinct measurements of the campaign's trials ended in each status, reused ones included."""
    mine = select(Trial.measurement_id).where(Trial.campaign_id == campaign_id)
    query = select(Row.status, func.count().label("measurements")).where(Row.id.in_(mine)).group_by(Row.status)
    return {row.status: row.measurements for row in session.execute(query)}


def trials(session: Session, campaign_id: int, *, workload: str | None = None) -> list[TrialRow]:
    """The campaign's trials, the oldest first: enough to rebuild its studies.

    :param workload: digest, for the trials of one workload alone.
    """
    query = (
        select(
            Workload.digest,
            Config.digest,
            Config.variant,
            Config.params,
            Trial.number,
            Trial.state,
            Trial.reason,
            Trial.reused,
            Trial.created_at,
            Trial.measurement_id,
            Row.status,
            Row.stage,
            Row.median_us,
            Row.low_us,
            Row.high_us,
            Trial.id,
        )
        .join(Workload, Workload.id == Trial.workload_id)
        .join(Config, Config.id == Trial.config_id)
        .outerjoin(Row, Row.id == Trial.measurement_id)
        .where(Trial.campaign_id == campaign_id)
        .order_by(Trial.id)
    )
    if workload is not None:
        query = query.where(Trial.workload_id == workload_id(workload))
    return [TrialRow(*row) for row in session.execute(query)]


def asked_objective(session: Session, *, target: str) -> dict[str, Any] | None:
    """What plans of a target are to choose by over the routings of a shape: as the last campaign there says that says
    anything; None where none does."""
    query = (
        select(Campaign.objective)
        .where(Campaign.target_id == target_id(target), Campaign.objective.is_not(None))
        .order_by(Campaign.id.desc())
        .limit(1)
    )
    return session.scalar(query)


def _campaign(session: Session, row: Campaign, target: str | None) -> CampaignRow:
    mine = Trial.campaign_id == row.id
    states = session.execute(
        select(Trial.state, func.count(), func.sum(case((Trial.reused, 1), else_=0), type_=Integer))
        .where(mine)
        .group_by(Trial.state)
    ).all()
    workloads = session.scalar(select(func.count(distinct(Trial.workload_id))).where(mine))
    return CampaignRow(
        id=row.id,
        name=row.name,
        file_text=row.file_text,
        file_digest=row.file_digest,
        target=target,
        state=row.state,
        budget=row.budget,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        measuring_s=row.measuring_s,
        wall_s=row.wall_s,
        trials={state: count for state, count, _ in states},
        reused=sum(reused for _, _, reused in states),
        workloads=workloads or 0,
        statuses=status_counts(session, row.id),
    )
