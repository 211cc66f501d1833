"""The decision on a plan, and the log of all of them: the lower half of Plan review."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st
from sqlalchemy.orm import Session

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.plans import SHORT
from megatune_dashboard.app.plans import label
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_db import queries
from megatune_db.errors import DatabaseError
from megatune_db.queries import PlanRow
from megatune_db.queries import PlanSummary
from megatune_db.records import PlanState
from megatune_db.reviews import By
from megatune_kernels.errors import MegatuneError
from megatune_planner import reviewing

STOCK = "stock"
DONE = "plan-action"
"""Where the session keeps what was just done, until the page has said so."""


def decide(context: Context, row: PlanSummary, *, readable: bool) -> None:
    """Buttons for what can be done to a plan in its state, with a comment that the log keeps."""
    st.subheader("Decision")
    if (done := st.session_state.pop(DONE, None)) is not None:
        st.success(done)
    if not context.person.reviews:
        st.info(f"{plain(context.person.name)} is a viewer: approving, rejecting and rolling back take a reviewer.")
        return
    if row.state is PlanState.EXPORTED:
        _roll_back(context, row)
        return
    _comment(row, "Kept in the log; needed to reject.")
    left, right = st.columns(2)
    if row.state in (PlanState.DRAFT, PlanState.RETIRED):
        again = " again" if row.state is PlanState.RETIRED else ""
        left.button(
            f"Approve{again}",
            type="primary",
            icon=":material/check:",
            width="stretch",
            disabled=not readable,
            on_click=_act,
            args=(context, row, reviewing.approve, "approved: it can be exported now"),
        )
    if row.state in (PlanState.DRAFT, PlanState.APPROVED):
        right.button(
            "Reject",
            icon=":material/close:",
            width="stretch",
            on_click=_act,
            args=(context, row, reviewing.reject, "rejected"),
        )
    if row.state is PlanState.APPROVED:
        left.caption("Approved: export it on the page Exports.")


def _roll_back(context: Context, row: PlanSummary) -> None:
    replaced = context.read(queries.replaced_plan, row.digest)
    earlier = {each.digest: each for each in context.read(queries.earlier_plans, row.digest)}
    choices = [*([replaced.digest] if replaced and replaced.digest in earlier else []), STOCK]
    choices += [digest for digest in earlier if digest not in choices]

    def spelled(choice: str) -> str:
        return "stock: no plan serves" if choice == STOCK else label(earlier[choice])

    to = st.selectbox("Roll back to", choices, format_func=spelled, key=f"to-{row.digest}")
    _comment(row, "Why; kept in the log.")

    def roll_back(session: Session, plan: PlanRow, by: By) -> None:
        if to == STOCK:
            reviewing.retire(session, plan.digest, by)
        else:
            reviewing.roll_back(session, plan.digest, by, to=to)

    done = "taken out of service: stock serves. Uninstall its export"
    if to != STOCK:
        done = f"rolled back: {to[:SHORT]} serves. Install that one's export in its place"
    st.button("Roll back", icon=":material/undo:", on_click=_act, args=(context, row, roll_back, done))


def _comment(row: PlanSummary, why: str) -> None:
    st.text_area("Comment", key=f"comment-{row.digest}", max_chars=4000, help=why)


def _act(context: Context, row: PlanSummary, action: Callable[[Session, PlanRow, By], Any], done: str) -> None:
    """Runs before the page is drawn anew, so that all of it shows the new state."""
    # Asked for now: what was typed just before the click had not arrived when the button was drawn.
    by = By(context.person.name, st.session_state.get(f"comment-{row.digest}", ""))
    try:
        with context.writing() as session:
            found = queries.plan(session, row.digest)
            if found is None:
                raise MegatuneError(f"the database has no plan {row.digest}")
            action(session, found, by)
    except (MegatuneError, DatabaseError) as error:
        st.error(plain(error))
        return
    st.session_state[DONE] = f"{plain(row.name)} ({row.digest[:SHORT]}) is {done}."


def log_table(context: Context, digest: str) -> None:
    """Everything that was done to the plan, and to others in its favour, the newest first."""
    st.subheader("Log")
    rows = [
        {
            "when (UTC)": each.at,
            "who": each.who,
            "action": each.action.value.replace("_", " "),
            "plan": f"{each.name} · {each.plan[:SHORT]}",
            "from": str(each.before),
            "to": str(each.after),
            "other plan": "" if each.other is None else each.other[:SHORT],
            "comment": each.comment,
        }
        for each in context.read(queries.reviews, digest)
    ]
    table("log", rows, empty="Nobody has decided anything about this plan.")
