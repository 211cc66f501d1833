"""Reviewing plans: what the commands and the pages do alike. Whoever calls commits."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import reviews
from megatune_db.queries import PlanRow
from megatune_db.records import PlanState
from megatune_db.reviews import By
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.base import write
from megatune_planner.plan import Plan

REVIEWED = (PlanState.APPROVED, PlanState.EXPORTED)
"""States of a plan that somebody approved."""


@dataclass(frozen=True)
class Exported:
    """What an export gave."""

    files: dict[str, bytes]
    """Content by path."""
    id: int | None
    """Of the export in the database; None where the database does not have the plan."""
    before: PlanState | None
    """State of the plan before it; None where the database does not have the plan."""
    replaced: str | None
    """Digest of the plan whose place in service it took."""


def user() -> str:
    """Who runs this program, as the operating system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for the number, as in a container
        return f"uid {os.getuid()}"


def approve(session: Session, row: PlanRow, by: By) -> None:
    """Approve a plan that this program can read.

    :raises MegatuneError: when it cannot.
    :raises PlanStateError: when it is approved or in service already.
    """
    Plan.from_json(row.content)
    reviews.approve(session, row.digest, by)


def reject(session: Session, row: PlanRow, by: By) -> None:
    """Reject a plan, whether this program can read it or not.

    :raises MegatuneError: when no reason is given.
    :raises PlanStateError: when it is in service, or retired already.
    """
    if not by.comment:
        raise MegatuneError("say why: a plan is rejected with a comment")
    reviews.reject(session, row.digest, by)


def roll_back(session: Session, digest: str, by: By, *, to: str | None = None) -> str | None:
    """Take a plan out of service for an earlier one, and return that one's digest; None where stock serves now.

    :param to: digest of the earlier plan; None: the one whose place it took, or else stock.
    :raises MegatuneError: when no reason is given.
    :raises PlanStateError: when the plan is not in service, or the other never was in its place.
    """
    replaced = queries.replaced_plan(session, digest) if to is None else None
    to = to if replaced is None else replaced.digest
    if to is None:
        retire(session, digest, by)
        return None
    _need_reason(by)
    reviews.roll_back(session, digest, by, to=to)
    return to


def retire(session: Session, digest: str, by: By) -> None:
    """Take a plan out of service: stock serves.

    :raises MegatuneError: when no reason is given.
    :raises PlanStateError: when the plan is not in service.
    """
    _need_reason(by)
    reviews.retire(session, digest, by)


def _need_reason(by: By) -> None:
    if not by.comment:
        raise MegatuneError("say why: a plan is rolled back with a comment")


def export_plan(
    session: Session | None,
    plan: Plan,
    exporter: Exporter,
    by: By,
    *,
    unreviewed: bool = False,
    out: Path | None = None,
) -> Exported:
    """Make the files of a plan and write down that they were made. An approved plan is in service from now on.

    :param session: None where there is no database: nothing is written down.
    :param unreviewed: export a plan that nobody approved, which stays what it is.
    :param out: folder for the files; None: they are returned alone.
    :raises MegatuneError: when nobody approved it, or it cannot be expressed or written, and says why.
    """
    row = None if session is None else queries.plan(session, plan.digest)
    state = None if row is None or row.digest != plan.digest else row.state
    if state not in REVIEWED and not unreviewed:
        raise MegatuneError(f"{not_approved(state)}: megatune approve it, or export it with --unreviewed")
    files = files_of(exporter, plan)
    id_ = replaced = None
    if session is not None and state is not None:
        served = queries.plan_in_service(session, plan.digest)
        id_ = reviews.export(
            session,
            plan.digest,
            by,
            exporter=exporter.name,
            files=files,
            runtime=exporter.runtime,
            runtime_version=exporter.runtime_version,
        )
        if served is not None and state is PlanState.APPROVED:
            replaced = served.digest
    if out is not None:
        # Last: where this fails the caller does not commit, and nothing says that there was an export.
        write(files, out)
    return Exported(files=files, id=id_, before=state, replaced=replaced)


def not_approved(state: PlanState | None) -> str:
    """What keeps a plan from being exported, in a few words."""
    if state is None:
        return "the database does not have this plan, so nobody approved it"
    return "the plan is retired" if state is PlanState.RETIRED else "the plan is a draft that nobody approved yet"


def files_of(exporter: Exporter, plan: Plan) -> dict[str, bytes]:
    """Content by path.

    :raises MegatuneError: when the plan cannot be expressed, and says why.
    """
    made = exporter.files(plan)
    return {path: content.encode() if isinstance(content, str) else content for path, content in made.items()}
