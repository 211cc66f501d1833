"""Reviews: every function moves a plan on and writes the audit log, and leaves the commit to the entry point. What is
done to campaigns by hand is in the log too.

A plan is a draft, then approved, exported and retired. The one that is exported is in service: for one target, model
and worlds there is at most one, and the next takes its place. Entries of the log are never changed, and nothing is
deleted; triggers of the database see to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.orm import Session

from megatune_db.dialects import on_postgres
from megatune_db.dialects import review_lock
from megatune_db.errors import PlanStateError
from megatune_db.models import IS_IN_SERVICE
from megatune_db.models import Campaign
from megatune_db.models import CampaignEntry
from megatune_db.models import Export
from megatune_db.models import Plan
from megatune_db.models import Review
from megatune_db.records import CampaignAction
from megatune_db.records import PlanState
from megatune_db.records import ReviewAction


@dataclass(frozen=True)
class By:
    """Whose action it is, and why."""

    who: str
    comment: str = ""

    def __post_init__(self) -> None:
        if not self.who.strip():
            raise ValueError("an action needs somebody who takes it")
        # Half a character, as an argument of a command can have, cannot be stored.
        object.__setattr__(self, "who", _text(self.who.strip())[:256])
        object.__setattr__(self, "comment", _text(self.comment.strip()))


def approve(session: Session, digest: str, by: By) -> None:
    """A draft may be exported from now on; so may a retired plan that is approved again.

    :raises LookupError: when there is no such plan.
    :raises PlanStateError: when it is approved or in service already.
    """
    plan = _locked(session, digest)
    _allow(plan, {PlanState.DRAFT, PlanState.RETIRED}, "it cannot be approved again")
    _move(session, plan, PlanState.APPROVED, ReviewAction.APPROVE, by)


def reject(session: Session, digest: str, by: By) -> None:
    """A draft, or an approved plan that nothing was exported of, shall not serve.

    :raises LookupError: when there is no such plan.
    :raises PlanStateError: when it is in service, or retired already.
    """
    plan = _locked(session, digest)
    remedy = "roll it back instead" if plan.state is PlanState.EXPORTED else "it cannot be rejected again"
    _allow(plan, {PlanState.DRAFT, PlanState.APPROVED}, remedy)
    _move(session, plan, PlanState.RETIRED, ReviewAction.REJECT, by)


def export(
    session: Session,
    digest: str,
    by: By,
    *,
    exporter: str,
    files: Mapping[str, bytes],
    runtime: str | None = None,
    runtime_version: str | None = None,
) -> int:
    """The id of the export. An approved plan is in service now, and the one that was before is retired.

    A plan in another state stays in it: that it was exported is kept all the same.

    :param files: content by path.
    :param runtime: distribution that reads them; None for a format of our own.
    :raises LookupError: when there is no such plan.
    """
    plan = _locked(session, digest)
    state = plan.state
    if state is PlanState.APPROVED:
        served = session.scalar(select(Plan.digest).where(IS_IN_SERVICE, *_same_service(plan)))
        if served is not None:
            _move(session, _locked(session, served), PlanState.RETIRED, ReviewAction.RETIRE, by, other=plan)
        _move(session, plan, PlanState.EXPORTED, ReviewAction.EXPORT, by)
    else:
        _move(session, plan, state, ReviewAction.EXPORT, by)
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}
    row = Export(
        plan_id=plan.id,
        who=by.who,
        exporter=exporter,
        runtime=runtime or "",
        runtime_version=runtime_version or "",
        files=digests,
        digest=digest_of_files(digests),
        state=state,
    )
    session.add(row)
    session.flush()
    return row.id


def retire(session: Session, digest: str, by: By) -> None:
    """Take a plan out of service with nothing in its place: stock serves.

    :raises LookupError: when there is no such plan.
    :raises PlanStateError: when it is not in service.
    """
    plan = _locked(session, digest)
    _allow(plan, {PlanState.EXPORTED}, "only a plan in service can be taken out of it")
    _move(session, plan, PlanState.RETIRED, ReviewAction.RETIRE, by)


def roll_back(session: Session, digest: str, by: By, *, to: str) -> None:
    """Take a plan out of service for an earlier one, which was approved and exported in its day.

    :param to: digest of the earlier plan.
    :raises LookupError: when there is no such plan.
    :raises PlanStateError: when the first is not in service, or the other never was for the same target, model and
        worlds.
    """
    plan, earlier = _locked(session, digest), _locked(session, to)
    _allow(plan, {PlanState.EXPORTED}, "only a plan in service can be rolled back")
    served = select(Review.id).where(
        Review.plan_id == earlier.id, Review.after == PlanState.EXPORTED, Review.before != PlanState.EXPORTED
    )
    if session.scalar(select(Plan.id).where(Plan.id == earlier.id, *_same_service(plan))) is None:
        raise PlanStateError(f"{_name(earlier)} is for another target, model or worlds than {_name(plan)}")
    if earlier.state is not PlanState.RETIRED or session.scalar(served.limit(1)) is None:
        raise PlanStateError(
            f"{_name(earlier)} is {earlier.state} and no earlier plan of {_name(plan)}: approve and export it"
        )
    _move(session, plan, PlanState.RETIRED, ReviewAction.ROLL_BACK, by, other=earlier)
    _move(session, earlier, PlanState.EXPORTED, ReviewAction.RESTORE, by, other=plan)


def log_campaign(session: Session, campaign: str, action: CampaignAction, by: By) -> None:
    """Write down what somebody does to a campaign.

    :param campaign: name.
    :raises LookupError: when there is no such campaign.
    """
    found = session.scalar(select(Campaign.id).where(Campaign.name == campaign))
    if found is None:
        raise LookupError(f"no campaign {campaign}")
    session.add(CampaignEntry(campaign_id=found, who=by.who, action=action, comment=by.comment))
    session.flush()


def digest_of_files(digests: Mapping[str, str]) -> str:
    """SHA-256 over the digests of files by path, hexadecimal; what ``files`` of an export comes down to."""
    return hashlib.sha256(json.dumps(dict(sorted(digests.items())), separators=(",", ":")).encode()).hexdigest()


def _locked(session: Session, digest: str) -> Plan:
    """The plan, after which nobody else reviews before the transaction ends: what is read from now on stays true."""
    if on_postgres(session):
        session.execute(review_lock())
    else:
        session.execute(update(Plan).where(Plan.digest == digest).values(state=Plan.state))
    found = session.scalar(select(Plan).where(Plan.digest == digest).execution_options(populate_existing=True))
    if found is None:
        raise LookupError(f"no plan {digest}")
    return found


def _allow(plan: Plan, states: set[PlanState], otherwise: str) -> None:
    if plan.state not in states:
        raise PlanStateError(f"{_name(plan)} is {_word(plan.state)}: {otherwise}")


def _move(
    session: Session, plan: Plan, after: PlanState, action: ReviewAction, by: By, *, other: Plan | None = None
) -> None:
    entry = Review(
        plan_id=plan.id,
        who=by.who,
        action=action,
        comment=by.comment,
        before=plan.state,
        after=after,
        other_id=None if other is None else other.id,
    )
    session.add(entry)
    plan.state = after
    # In this order, because two plans may not be in service at once.
    session.flush()


def _same_service(plan: Plan) -> tuple[ColumnElement[bool], ...]:
    return (Plan.target_id == plan.target_id, Plan.model == plan.model, Plan.worlds == plan.worlds)


def _name(plan: Plan) -> str:
    return f"plan {plan.name} ({plan.digest[:12]})"


def _word(state: PlanState) -> str:
    return "a draft" if state is PlanState.DRAFT else state.value


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
