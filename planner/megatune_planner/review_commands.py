"""The commands ``approve``, ``reject`` and ``rollback``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any

import typer

from megatune_kernels.errors import MegatuneError
from megatune_planner.command_words import DEFAULT_DATABASE
from megatune_planner.command_words import ByOption
from megatune_planner.command_words import DatabaseOption
from megatune_planner.command_words import JsonOption
from megatune_planner.command_words import PlanArgument
from megatune_planner.command_words import by_of
from megatune_planner.command_words import database_session
from megatune_planner.command_words import from_file
from megatune_planner.command_words import print_json
from megatune_planner.warning_words import warn_unverified

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from megatune_db.queries import PlanRow

CommentOption = Annotated[str, typer.Option("--comment", help="Why; it stays in the plan's log.")]
ReasonOption = Annotated[str, typer.Option("--comment", help="Why; it stays in the plan's log.", show_default=False)]


def approve(
    plan: PlanArgument,
    comment: CommentOption = "",
    db: DatabaseOption = DEFAULT_DATABASE,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve a plan, so that it may be exported. The database keeps who did, when and why."""
    from megatune_planner import reviewing
    from megatune_planner.plan import Plan

    with database_session(db) as session:
        row = _reviewed(session, plan)
        reviewing.approve(session, row, by_of(by, comment))
        found = _result(session, row.digest)
    warn_unverified(Plan.from_json(row.content), db)
    _say(found, f"approved by {found['who']}: megatune export {plan} --db {db} --to …", as_json)


def reject(
    plan: PlanArgument,
    comment: ReasonOption,
    db: DatabaseOption = DEFAULT_DATABASE,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a plan that is not in service. The database keeps who did, when and why."""
    from megatune_planner import reviewing

    with database_session(db) as session:
        row = _reviewed(session, plan)
        reviewing.reject(session, row, by_of(by, comment))
        found = _result(session, row.digest)
    _say(found, f"rejected by {found['who']}", as_json)


def rollback(
    plan: PlanArgument,
    comment: ReasonOption,
    to: Annotated[
        str | None,
        typer.Option("--to", help="The earlier plan; by default the one whose place this one took, or stock."),
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    by: ByOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the plan in service out of it, for an earlier one or for stock. Then install that one's export again."""
    from megatune_db import queries
    from megatune_planner import reviewing

    with database_session(db) as session:
        digest = _in_service(session, plan)
        if to is not None and queries.plan(session, to) is None:
            raise MegatuneError(f"the database has no plan {to}")
        earlier = None if to is None else _reviewed(session, to).digest
        now = reviewing.roll_back(session, digest, by_of(by, comment), to=earlier)
        found = _result(session, digest)
    _say(found, f"out of service; {'stock' if now is None else now} serves now", as_json)


def _reviewed(session: Session, plan: str) -> PlanRow:
    """The plan's row; a file that the database does not have yet is kept first.

    :raises MegatuneError: when there is no such plan.
    """
    from megatune_db import queries
    from megatune_planner.drafting import keep_draft

    made = from_file(plan)
    if made is not None:
        keep_draft(session, made)
    row = queries.plan(session, plan if made is None else made.digest)
    if row is None:
        known = ", ".join(sorted({row.name for row in queries.plan_summaries(session)}))
        raise MegatuneError(f"there is no file {plan}, and no plan of that name or digest; there are {known or 'none'}")
    return row


def _in_service(session: Session, plan: str) -> str:
    """Digest of the plan of that file, digest, or name: by name the one that is in service.

    :raises MegatuneError: when there is none, or several.
    """
    from megatune_db import queries
    from megatune_db.records import PlanState

    serving = [row for row in queries.plan_summaries(session) if row.state is PlanState.EXPORTED and row.name == plan]
    if len(serving) > 1:
        digests = ", ".join(row.digest for row in serving)
        raise MegatuneError(f"several plans {plan} are in service, on several targets: name one by digest: {digests}")
    return serving[0].digest if serving else _reviewed(session, plan).digest


def _result(session: Session, digest: str) -> dict[str, Any]:
    from megatune_db import queries

    row = queries.reviews(session, digest, limit=1)[0]
    entry = next(each for each in queries.reviews(session, digest) if each.plan == digest)
    serving = queries.plan_in_service(session, digest)
    return {
        "plan": digest,
        "name": row.name,
        "action": entry.action.value,
        "state": entry.after.value,
        "who": entry.who,
        "comment": entry.comment,
        "in_service": None if serving is None else serving.digest,
    }


def _say(found: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        typer.echo(f"plan {found['name']} ({found['plan']}): {text}")
