"""The audit log of plans and campaigns, and what was exported of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlalchemy.orm import aliased

from megatune_db.models import Campaign
from megatune_db.models import CampaignEntry
from megatune_db.models import Export
from megatune_db.models import Plan
from megatune_db.models import Review
from megatune_db.records import CampaignAction
from megatune_db.records import PlanState
from megatune_db.records import ReviewAction


@dataclass(frozen=True)
class ReviewRow:
    """One action on one plan."""

    at: datetime
    """UTC."""
    who: str
    action: ReviewAction
    name: str
    """Of the plan."""
    plan: str
    """Digest."""
    before: PlanState
    after: PlanState
    other: str | None
    """Digest of the plan that it gave its place to, or took it from."""
    comment: str


@dataclass(frozen=True)
class CampaignLogRow:
    """One action on one campaign."""

    at: datetime
    """UTC."""
    who: str
    campaign: str
    """Its name."""
    action: CampaignAction
    comment: str


@dataclass(frozen=True)
class PlanExportRow:
    """Files that were made of a plan."""

    id: int
    at: datetime
    """UTC."""
    who: str
    name: str
    """Of the plan."""
    plan: str
    """Digest."""
    state: PlanState
    """Of the plan when it was exported; ``draft`` when nobody had reviewed it."""
    exporter: str
    runtime: str
    runtime_version: str
    """Both empty for a format of our own."""
    files: dict[str, str]
    """SHA-256 of each, hexadecimal, by path."""
    digest: str
    """Of ``files``."""


def campaign_log(session: Session, campaign_id: int | None = None, *, limit: int | None = None) -> list[CampaignLogRow]:
    """What was done to campaigns by hand, the latest first.

    :param campaign_id: None for those of every campaign.
    """
    query = (
        select(CampaignEntry.at, CampaignEntry.who, Campaign.name, CampaignEntry.action, CampaignEntry.comment)
        .join(Campaign, Campaign.id == CampaignEntry.campaign_id)
        .order_by(CampaignEntry.id.desc())
        .limit(limit)
    )
    if campaign_id is not None:
        query = query.where(CampaignEntry.campaign_id == campaign_id)
    return [CampaignLogRow(*row) for row in session.execute(query)]


def reviews(session: Session, plan: str | None = None, *, limit: int | None = None) -> list[ReviewRow]:
    """Entries of the audit log, the newest first.

    :param plan: digest, for the entries that are of this plan or name it.
    """
    other = aliased(Plan)
    query = (
        select(
            Review.at,
            Review.who,
            Review.action,
            Plan.name,
            Plan.digest,
            Review.before,
            Review.after,
            other.digest,
            Review.comment,
        )
        .join(Plan, Plan.id == Review.plan_id)
        .outerjoin(other, other.id == Review.other_id)
        .order_by(Review.id.desc())
        .limit(limit)
    )
    if plan is not None:
        wanted = _plan_id(plan)
        query = query.where(or_(Review.plan_id == wanted, Review.other_id == wanted))
    return [ReviewRow(*row) for row in session.execute(query)]


def plan_exports(session: Session, plan: str | None = None, *, limit: int | None = None) -> list[PlanExportRow]:
    """What was exported, the newest first.

    :param plan: digest, for the exports of one plan alone.
    """
    query = _exports().order_by(Export.id.desc()).limit(limit)
    if plan is not None:
        query = query.where(Export.plan_id == _plan_id(plan))
    return [PlanExportRow(*row) for row in session.execute(query)]


def plan_export(session: Session, id_: int) -> PlanExportRow | None:
    """The export of that id."""
    found = session.execute(_exports().where(Export.id == id_)).first()
    return None if found is None else PlanExportRow(*found)


def _exports() -> Select[*tuple[Any, ...]]:
    return select(
        Export.id,
        Export.at,
        Export.who,
        Plan.name,
        Plan.digest,
        Export.state,
        Export.exporter,
        Export.runtime,
        Export.runtime_version,
        Export.files,
        Export.digest,
    ).join(Plan, Plan.id == Export.plan_id)


def _plan_id(digest: str) -> Any:
    return select(Plan.id).where(Plan.digest == digest).scalar_subquery()
