"""Plans."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db.models import Plan
from megatune_db.models import Target
from megatune_db.records import PlanState


@dataclass(frozen=True)
class PlanRow:
    """A plan; ``content`` is its canonical JSON."""

    digest: str
    name: str
    content: str
    state: PlanState
    target: str
    """Digest."""
    created_at: datetime


def plan(session: Session, digest_or_name: str) -> PlanRow | None:
    """The plan of that digest, or else the newest of that name."""
    query = select(Plan, Target.digest).join(Target, Target.id == Plan.target_id)
    found = session.execute(query.where(Plan.digest == digest_or_name)).first()
    if found is None:
        found = session.execute(query.where(Plan.name == digest_or_name).order_by(Plan.id.desc())).first()
    return None if found is None else _plan(found[0], found[1])


def plans(session: Session) -> list[PlanRow]:
    """Every plan, the newest first."""
    query = select(Plan, Target.digest).join(Target, Target.id == Plan.target_id).order_by(Plan.id.desc())
    return [_plan(row, target) for row, target in session.execute(query)]


def _plan(row: Plan, target: str) -> PlanRow:
    return PlanRow(row.digest, row.name, row.content, row.state, target, row.created_at)
