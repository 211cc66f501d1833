"""Exports: what was made of plans for runtimes, by whom, and the files."""

from __future__ import annotations

import hashlib
import io
import shlex
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.plans import SHORT
from megatune_dashboard.app.plans import label
from megatune_dashboard.app.plans import loaded
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.verifications import band_rows
from megatune_dashboard.app.verifications import canary_rows
from megatune_dashboard.app.verifications import document
from megatune_dashboard.app.verifications import timeline_figure
from megatune_dashboard.app.verifications import verification_rows
from megatune_dashboard.app.welcome import welcome
from megatune_db import queries
from megatune_db.errors import DatabaseError
from megatune_db.queries import PlanExportRow
from megatune_db.queries import PlanSummary
from megatune_db.queries import VerificationRow
from megatune_db.records import PlanState
from megatune_db.reviews import By
from megatune_db.reviews import digest_of_files
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.base import exporters
from megatune_planner.reviewing import REVIEWED
from megatune_planner.reviewing import export_plan
from megatune_planner.reviewing import files_of

T = TypeVar("T", PlanExportRow, VerificationRow)

TITLE = "Exports"
ICON = ":material/inventory_2:"
PATH = "exports"

DONE = "export-done"
"""Where the session keeps what was just exported, until the page has said so."""
MOST_VERIFICATIONS = 500
NUMBERS = {
    name: st.column_config.NumberColumn(format=spelled)
    for name, spelled in (
        ("then µs", "%.3f"),
        ("now µs", "%.3f"),
        ("time over the closest", "%.3f"),
        ("now over then", "%.3f"),
        ("low", "%.3f"),
        ("high", "%.3f"),
    )
}
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that an archive can say: the same files give the same archive."""


def page(context: Context) -> None:
    if context.source.database() is None:
        welcome(context)
        return
    st.title("Exports")
    _export(context)
    _exported(context)
    _verified(context)


def _chosen(rows: Sequence[T], state: Any, name: str) -> T | None:
    """The row that was clicked, else the one whose id is in the address under that name; None for none.

    :param state: of the table that shows them.
    """
    clicked = state.selection.rows if state is not None else []
    wanted = st.query_params.get(name, "")
    row = rows[clicked[0]] if clicked else next((row for row in rows if str(row.id) == wanted), None)
    if row is not None:
        st.query_params[name] = str(row.id)
    return row


def _exported(context: Context) -> None:
    st.subheader("What was exported")
    rows = context.read(queries.plan_exports)
    shown = [
        {
            "when (UTC)": row.at,
            "who": row.who,
            "plan": row.name,
            "digest of the plan": row.plan[:SHORT],
            "state then": str(row.state),
            "exporter": row.exporter,
            "runtime": _runtime(row.runtime, row.runtime_version),
            "files": len(row.files),
            "digest of the files": row.digest[:SHORT],
        }
        for row in rows
    ]
    state = table("exports", shown, empty="Nothing yet.", on_select="rerun", selection_mode="single-row")
    if not rows:
        return
    row = _chosen(rows, state, "export")
    if row is None:
        st.caption("Choose a row for its files.")
        return
    _details(context, row)


def _export(context: Context) -> None:
    """The form, for plans that somebody approved: no other can be exported from here."""
    if (done := st.session_state.pop(DONE, None)) is not None:
        st.success(done)
    ready = {row.digest: row for row in context.read(queries.plan_summaries) if row.state in REVIEWED}
    if not context.person.reviews:
        st.info(f"{plain(context.person.name)} is a viewer: exporting takes a reviewer.")
        return
    if not ready:
        st.info("No plan is approved, so none can be exported from here: decide on one on the page Plan review.")
        return
    wanted = st.query_params.get("plan", "")
    left, right = st.columns(2)
    digest = left.selectbox(
        "Plan",
        list(ready),
        index=list(ready).index(wanted) if wanted in ready else 0,
        format_func=lambda each: label(ready[each]),
        help="Plans that are approved or in service.",
    )
    known = exporters()
    names = sorted(known, key=lambda each: (known[each].runtime is not None, each))
    name = right.selectbox("Exporter", names, help="What the files are for; the first needs no runtime.")
    st.caption(f"Writes {plain(known[name].what)}.")
    try:
        if checked := known[name].check_runtime():
            st.caption(plain(checked))
        files = files_of(known[name], loaded(context, digest))
    except MegatuneError as error:
        st.warning(plain(error), icon=":material/warning:")
        return
    _consequence(context, ready[digest])
    st.button(
        f"Export {len(files)} file{'s' if len(files) > 1 else ''}",
        type="primary",
        icon=":material/upload:",
        on_click=_act,
        args=(context, digest, name),
    )


def _consequence(context: Context, row: PlanSummary) -> None:
    serving = context.read(queries.plan_in_service, row.digest)
    if row.state is PlanState.EXPORTED:
        st.caption("The plan is in service already.")
    elif serving is None:
        st.caption("The plan will be in service, where stock serves now.")
    else:
        st.caption(f"The plan will be in service, and {plain(label(serving))} will be retired.")


def _act(context: Context, digest: str, name: str) -> None:
    """Runs before the page is drawn anew, so that all of it shows the new state."""
    try:
        plan = loaded(context, digest)
        with context.writing() as session:
            exported = export_plan(session, plan, exporter(name), By(context.person.name))
    except (MegatuneError, DatabaseError) as error:
        st.error(plain(error))
        return
    st.query_params["export"] = str(exported.id)
    st.session_state[DONE] = f"{plain(plan.content.name)} ({digest[:SHORT]}) is exported for {plain(name)}."


def _details(context: Context, row: PlanExportRow) -> None:
    st.subheader(f"{plain(row.name)} for {plain(row.exporter)}")
    st.caption(
        f"Plan {row.plan} · files {row.digest} · {row.at:%Y-%m-%d %H:%M} UTC by {plain(row.who)}"
        + (" · nobody had approved the plan" if row.state not in REVIEWED else "")
    )
    rows = [{"file": path, "SHA-256": digest} for path, digest in row.files.items()]
    table(f"files-{row.id}", rows, empty="No files.")
    # A plan gives the same files every time, so they need not be kept: only what they were.
    try:
        files = files_of(exporter(row.exporter), loaded(context, row.plan))
    except MegatuneError as error:
        st.warning(f"These files cannot be made again here: {plain(error)}", icon=":material/warning:")
        return
    if digest_of_files({path: hashlib.sha256(content).hexdigest() for path, content in files.items()}) != row.digest:
        st.warning(
            "This version of Megatune makes other files of the plan: export it again, or use the version of that day.",
            icon=":material/warning:",
        )
        return
    st.download_button(
        "Download the files",
        archive(files),
        file_name=f"{row.plan[:SHORT]}-{row.exporter}.zip",
        mime="application/zip",
        icon=":material/download:",
        on_click="ignore",
        help="A ZIP archive of the very files whose digests are above.",
    )


def _verified(context: Context) -> None:
    """Whether plans still hold: verdicts over time, and what each rests on."""
    st.subheader("Verification")
    rows = context.read(queries.verifications, limit=MOST_VERIFICATIONS)
    if not rows:
        st.caption("No plan has been verified yet. To measure again what one rests on, on its target:")
        st.code(f"megatune verify PLAN --db {shlex.quote(str(context.location))}", language="sh")
        return
    charts.show(timeline_figure(rows), "verifications-chart")
    state = table("verifications", verification_rows(rows), empty="", on_select="rerun", selection_mode="single-row")
    if len(rows) == MOST_VERIFICATIONS:
        st.caption(f"The latest {MOST_VERIFICATIONS}.")
    row = _chosen(rows, state, "verification")
    if row is None:
        st.caption("Choose a row for what was compared.")
        return
    try:
        found = document(row)
    except MegatuneError as error:
        st.warning(plain(error), icon=":material/warning:")
        return
    st.markdown(f"**{plain(row.name)}** ({row.plan[:SHORT]}) on {row.at:%Y-%m-%d}: {plain(found.reason)}")
    if found.changed:
        changed = "; ".join(f"{name} {before} to {now}" for name, (before, now) in found.changed.items())
        st.caption(f"Since the plan was made these changed: {plain(changed)}.")
    table(f"verification-{row.id}", band_rows(found), empty="The plan has no bands.", columns=NUMBERS)
    st.caption(
        "Time of the choice over the time of what comes closest to it, with its 95 % interval: at or below "
        f"{1 + found.margin:g} it holds."
    )
    st.markdown(f"**Canaries**: {plain(found.machine.reason)}")
    table(f"canaries-{row.id}", canary_rows([(row, found)]), empty="No canary was measured.", columns=NUMBERS)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive of files by path, the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as opened:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _runtime(name: str, version: str) -> str:
    return f"{name} {version}".strip() or "any"
