"""What was found out about plans after they were made: that they hold, and that other seeds lead to the same.

Every function leaves the commit to the entry point. Entries are never changed; triggers of the database see to it.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Campaign
from megatune_db.models import Plan
from megatune_db.models import Repeat
from megatune_db.models import Target
from megatune_db.models import Verification
from megatune_db.records import Provenance
from megatune_db.records import Regime


def add_verification(
    session: Session,
    *,
    plan: str,
    target: str,
    at: datetime,
    who: str,
    provenance: Provenance,
    verdict: str,
    reason: str,
    document: str,
) -> int:
    """The id of the verification of a plan.

    :param plan: digest.
    :param target: digest of what it was verified on.
    :param at: UTC, without a time zone.
    :param document: JSON of all that was compared.
    :raises LookupError: when the plan or the target has not been put.
    """
    row = Verification(
        plan_id=_id(session, Plan, plan),
        target_id=_id(session, Target, target),
        at=at,
        who=who,
        provenance=provenance,
        verdict=verdict,
        reason=reason,
        document=document,
    )
    session.add(row)
    session.flush()
    return row.id


def add_repeat(
    session: Session,
    *,
    campaign: str,
    target: str,
    regime: Regime,
    provenance: Provenance,
    at: datetime,
    who: str,
    repeats: int,
    flip_rate: float,
    regret: float,
    document: str,
) -> int:
    """The id of what came of running a campaign again with other seeds.

    :param campaign: name.
    :param target: digest.
    :param at: UTC, without a time zone.
    :param repeats: how often it was run again.
    :param flip_rate: share of the decisions that other seeds took otherwise.
    :param regret: share of the time that the campaign's plan loses against the best of all runs.
    :param document: JSON of every flip.
    :raises LookupError: when the campaign or the target has not been put.
    """
    campaign_id = session.scalar(select(Campaign.id).where(Campaign.name == campaign))
    if campaign_id is None:
        raise LookupError(f"no campaign {campaign}")
    row = Repeat(
        campaign_id=campaign_id,
        target_id=_id(session, Target, target),
        regime=str(regime),
        provenance=provenance,
        at=at,
        who=who,
        repeats=repeats,
        flip_rate=flip_rate,
        regret=regret,
        document=document,
    )
    session.add(row)
    session.flush()
    return row.id


def _id(session: Session, table: type[Plan] | type[Target], digest: str) -> int:
    found = session.scalar(select(table.id).where(table.digest == digest))
    if found is None:
        raise LookupError(f"no {table.__name__.lower()} {digest}: put it first")
    return found
