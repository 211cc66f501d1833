"""Plans, and which of them serve."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy import Select
from sqlalchemy import exists
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlalchemy.orm import aliased

from megatune_db.models import IS_IN_SERVICE
from megatune_db.models import Plan
from megatune_db.models import Review
from megatune_db.models import Target
from megatune_db.records import PlanState
from megatune_db.records import ReviewAction


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
    model: str
    """Name of the model that it serves; of a plan for every model, the plan's own name."""
    worlds: tuple[int, ...]
    """Numbers of ranks that it serves; empty for any."""


@dataclass(frozen=True)
class PlanSummary:
    """A plan without its content, and what was last done to it."""

    digest: str
    name: str
    state: PlanState
    target: str
    """Digest."""
    created_at: datetime
    model: str
    worlds: tuple[int, ...]
    last_action: ReviewAction | None
    """None: nobody has reviewed it."""
    last_who: str | None
    last_at: datetime | None


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


def plan_summaries(session: Session) -> list[PlanSummary]:
    """Every plan, the newest first, without reading what is in it."""
    return [_summary(row) for row in session.execute(_summaries().order_by(Plan.id.desc()))]


def plan_in_service(session: Session, digest: str) -> PlanSummary | None:
    """The plan that is in service for the target, model and worlds of this one, be it this one itself."""
    wanted = aliased(Plan)
    mine = select(Plan.id).join(wanted, _same_service(wanted)).where(wanted.digest == digest, IS_IN_SERVICE)
    found = session.execute(_summaries().where(Plan.id == mine.scalar_subquery())).first()
    return None if found is None else _summary(found)


def replaced_plan(session: Session, digest: str) -> PlanSummary | None:
    """The plan whose place in service this one took; None where it took nobody's, or stock's."""
    mine = select(Plan.id).where(Plan.digest == digest).scalar_subquery()
    left = (
        select(Review.plan_id)
        .where(Review.other_id == mine, Review.action == ReviewAction.RETIRE)
        .order_by(Review.id.desc())
        .limit(1)
    )
    found = session.execute(_summaries().where(Plan.id == left.scalar_subquery())).first()
    return None if found is None else _summary(found)


def earlier_plans(session: Session, digest: str) -> list[PlanSummary]:
    """The retired plans that have been in service where this one is or would be, the last to enter it first."""
    wanted = aliased(Plan)
    entered = (
        select(func.max(Review.id))
        .where(Review.plan_id == Plan.id, Review.after == PlanState.EXPORTED, Review.before != PlanState.EXPORTED)
        .correlate(Plan)
        .scalar_subquery()
    )
    query = (
        _summaries()
        .where(exists().where(wanted.digest == digest, wanted.id != Plan.id, _same_service(wanted)))
        .where(Plan.state == PlanState.RETIRED, entered.is_not(None))
        .order_by(entered.desc())
    )
    return [_summary(row) for row in session.execute(query)]


def _same_service(other: type[Plan]) -> ColumnElement[bool]:
    return (Plan.target_id == other.target_id) & (Plan.model == other.model) & (Plan.worlds == other.worlds)


def _summaries() -> Select[*tuple[Any, ...]]:
    last = select(func.max(Review.id)).where(Review.plan_id == Plan.id).correlate(Plan).scalar_subquery()
    return (
        select(
            Plan.digest,
            Plan.name,
            Plan.state,
            Target.digest,
            Plan.created_at,
            Plan.model,
            Plan.worlds,
            Review.action,
            Review.who,
            Review.at,
        )
        .join(Target, Target.id == Plan.target_id)
        .outerjoin(Review, Review.id == last)
    )


def _summary(row: Any) -> PlanSummary:
    digest, name, state, target, created_at, model, worlds, *last = row
    return PlanSummary(digest, name, state, target, created_at, model, _worlds(worlds), *last)


def _plan(row: Plan, target: str) -> PlanRow:
    return PlanRow(row.digest, row.name, row.content, row.state, target, row.created_at, row.model, _worlds(row.worlds))


def _worlds(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
