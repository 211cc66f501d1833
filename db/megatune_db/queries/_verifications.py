"""Verifications of plans, and campaigns that were run again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Campaign
from megatune_db.models import Plan
from megatune_db.models import Repeat
from megatune_db.models import Target
from megatune_db.models import Verification
from megatune_db.queries._lookup import target_id
from megatune_db.records import Provenance


@dataclass(frozen=True)
class VerificationRow:
    """A plan that was measured again."""

    id: int
    at: datetime
    """UTC."""
    who: str
    name: str
    """Of the plan."""
    plan: str
    """Digest."""
    target: str
    """Digest of what it was verified on."""
    hardware: dict[str, Any]
    toolchain: dict[str, Any]
    """Of that target."""
    provenance: Provenance
    verdict: str
    """``holds``, ``drifted`` or ``cannot tell``."""
    reason: str
    """In one line."""
    document: str
    """JSON of all that was compared."""


@dataclass(frozen=True)
class RepeatRow:
    """A campaign that was run again with other seeds."""

    id: int
    at: datetime
    """UTC."""
    who: str
    campaign: str
    """Its name."""
    target: str
    """Digest."""
    regime: str
    provenance: Provenance
    repeats: int
    flip_rate: float
    """Share of the decisions that other seeds took otherwise."""
    regret: float
    """Share of the time that its plan loses against the best of all runs."""
    document: str
    """JSON of every flip."""


def verifications(session: Session, plan: str | None = None, *, limit: int | None = None) -> list[VerificationRow]:
    """What verifications came to, the newest first.

    :param plan: digest, for those of one plan alone.
    """
    query = (
        select(
            Verification.id,
            Verification.at,
            Verification.who,
            Plan.name,
            Plan.digest,
            Target.digest,
            Target.hardware,
            Target.toolchain,
            Verification.provenance,
            Verification.verdict,
            Verification.reason,
            Verification.document,
        )
        .join(Plan, Plan.id == Verification.plan_id)
        .join(Target, Target.id == Verification.target_id)
        .order_by(Verification.id.desc())
        .limit(limit)
    )
    if plan is not None:
        query = query.where(Verification.plan_id == select(Plan.id).where(Plan.digest == plan).scalar_subquery())
    return [VerificationRow(*row) for row in session.execute(query)]


def repeats(session: Session, *, target: str | None = None, limit: int | None = None) -> list[RepeatRow]:
    """What came of running campaigns again, the newest first.

    :param target: digest, for those on one target alone.
    """
    query = (
        select(
            Repeat.id,
            Repeat.at,
            Repeat.who,
            Campaign.name,
            Target.digest,
            Repeat.regime,
            Repeat.provenance,
            Repeat.repeats,
            Repeat.flip_rate,
            Repeat.regret,
            Repeat.document,
        )
        .join(Campaign, Campaign.id == Repeat.campaign_id)
        .join(Target, Target.id == Repeat.target_id)
        .order_by(Repeat.id.desc())
        .limit(limit)
    )
    if target is not None:
        query = query.where(Repeat.target_id == target_id(target))
    return [RepeatRow(*row) for row in session.execute(query)]
