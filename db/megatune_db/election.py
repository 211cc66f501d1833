"""Who coordinates a campaign: one process at a time, elected in the database.

Its place holds until a time by the database's clock that it puts off again and again; whoever finds it past takes the
place over. Each holder has an epoch of its own, and every transaction in which it writes begins with ``fence``: one
that was overtaken, because it slept or lost its connection, cannot write any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import Session

from megatune_db import place
from megatune_db.clock import database_now
from megatune_db.errors import CoordinatorReplacedError
from megatune_db.models import Coordinator
from megatune_db.models import Measurement
from megatune_db.models import Trial

TERM_S = 20.0
"""Seconds for which a coordinator keeps its place without a sign of life."""


@dataclass(frozen=True)
class Term:
    """A place that was won."""

    campaign_id: int
    holder: str
    epoch: int
    term_s: float


@dataclass(frozen=True)
class Beginning:
    """Where the way of a campaign began: the greatest ids of measurements and trials that were there."""

    measurements: int
    trials: int
    is_new: bool
    """Whether it begins now."""


def elect(session: Session, campaign_id: int, *, term_s: float = TERM_S, holder: str | None = None) -> Term | str:
    """Take the campaign's place, if it is free; otherwise who holds it.

    :raises sqlalchemy.exc.IntegrityError: when another one takes it first, at the same moment: ask again.
    """
    holder = holder or place.here()
    now = database_now()
    query = select(Coordinator.holder, Coordinator.epoch, (Coordinator.expires_at > now).label("holds"))
    row = session.execute(query.where(Coordinator.campaign_id == campaign_id)).first()
    if row is None:
        first = {"basis": "", "measurements_before": 0, "trials_before": 0, "expires_at": now + term_s}
        session.execute(insert(Coordinator).values(campaign_id=campaign_id, holder=holder, epoch=1, **first))
        return Term(campaign_id, holder, 1, term_s)
    if row.holds and row.holder and not place.is_gone(row.holder):
        return str(row.holder)
    # Who else found the place free has raised the epoch meanwhile.
    same = (Coordinator.campaign_id == campaign_id) & (Coordinator.epoch == row.epoch)
    taken = update(Coordinator).where(same).values(holder=holder, epoch=row.epoch + 1, expires_at=now + term_s)
    if session.scalar(taken.returning(Coordinator.epoch)) is None:
        return "another process"
    return Term(campaign_id, holder, row.epoch + 1, term_s)


def holders(session: Session) -> dict[int, str]:
    """The processes that coordinate campaigns now, by id of the campaign.

    One of this machine that is there counts although it is late: on a busy machine nothing else may have happened.
    """
    late = (Coordinator.expires_at <= database_now()).label("late")
    query = select(Coordinator.campaign_id, Coordinator.holder, late).where(Coordinator.holder != "")
    return {
        row.campaign_id: row.holder
        for row in session.execute(query)
        if place.process(row.holder) is not None or not (row.late or place.is_gone(row.holder))
    }


def fence(session: Session, term: Term) -> None:
    """Keep the place, and keep others from taking it before this transaction ends.

    :raises CoordinatorReplacedError: when it is another's.
    """
    kept = update(Coordinator).where(*_mine(term)).values(expires_at=database_now() + term.term_s)
    if session.scalar(kept.returning(Coordinator.epoch)) is None:
        raise CoordinatorReplacedError(
            "another process has taken over this campaign: this one stops, and nothing that was measured is lost"
        )


def resign(session: Session, term: Term) -> None:
    """Leave the place to whoever wants it; nothing happens where it is another's already."""
    session.execute(update(Coordinator).where(*_mine(term)).values(holder="", expires_at=0.0))


def beginning(session: Session, term: Term, basis: str, *, anew: bool = False) -> Beginning:
    """Where the campaign's way on this basis began: here and now, where it is another basis than before.

    :param basis: digest of what decides the way.
    :param anew: begin here and now in any case.
    """
    row = session.execute(
        select(Coordinator.basis, Coordinator.measurements_before, Coordinator.trials_before).where(*_mine(term))
    ).one()
    if row.basis == basis and not anew:
        return Beginning(row.measurements_before, row.trials_before, is_new=False)
    begun = Beginning(
        session.scalar(select(func.max(Measurement.id))) or 0,
        session.scalar(select(func.max(Trial.id))) or 0,
        is_new=True,
    )
    session.execute(
        update(Coordinator)
        .where(*_mine(term))
        .values(basis=basis, measurements_before=begun.measurements, trials_before=begun.trials)
    )
    return begun


def _mine(term: Term) -> tuple[ColumnElement[bool], ...]:
    return (
        Coordinator.campaign_id == term.campaign_id,
        Coordinator.epoch == term.epoch,
        Coordinator.holder == term.holder,
    )
