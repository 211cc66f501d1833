"""Campaigns: how far each has come, what it has gained, and who measures now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app import running
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.outcomes import duration
from megatune_dashboard.app.outcomes import outcomes_of
from megatune_dashboard.app.outcomes import speedup
from megatune_dashboard.app.outcomes import target_name
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.text import shortened
from megatune_dashboard.app.welcome import welcome
from megatune_db import queries
from megatune_db import reviews
from megatune_db.errors import DatabaseError
from megatune_db.queries import CampaignRow
from megatune_db.queries import OutcomeRow
from megatune_db.queries import TargetRow
from megatune_db.records import CampaignAction
from megatune_db.records import CampaignState
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.reviews import By
from megatune_kernels.errors import MegatuneError
from megatune_planner.routings import at_routing

TITLE = "Campaigns"
ICON = ":material/speed:"
PATH = "campaigns"

LOOK_S = 2
"""Seconds between looks at the database."""
SEEN = "campaigns-seen"
"""In the session: whether the page was shown once."""
MOST_LETTERS = 80
"""Of a name in a heading."""
NEARLY = 0.99
"""The most that is said of a campaign that has not finished."""


@dataclass(frozen=True)
class Progress:
    """How far a campaign has come."""

    done: int
    """Trials."""
    share: float | None
    """Of all that it has to do; None where nothing says how much that is."""
    left_s: float | None
    """Seconds to its end, at the pace of its last trials."""


def page(context: Context) -> None:
    database = context.source.database()
    if database is None or not context.read(queries.campaigns):
        welcome(context)
        return
    st.title("Campaigns")
    st.fragment(_overview, run_every=LOOK_S)(context, set(running.coordinators(database)))


def _overview(context: Context, ran: set[int]) -> None:
    """Everything that moves. It is drawn anew at intervals, and the whole page where a campaign began or ended."""
    database = context.source.database()
    writers = {} if database is None else running.coordinators(database)
    if database is None or set(writers) != ran:
        st.rerun()
        return
    rows = context.read(queries.campaigns)
    targets = {each.digest: each for each in context.read(queries.targets, counted=False)}
    _who_measures(sorted(writers.values()))
    lines = [_line(context, row, writers.get(row.id), targets) for row in rows]
    table("campaigns", lines, empty="No campaign yet.", columns=COLUMNS)
    names = [row.name for row in rows]
    chosen = st.selectbox("Campaign", names, key="campaign", bind="query-params", format_func=shortened)
    row = next((each for each in rows if each.name == chosen), rows[0])
    # A file has one campaign at a time, and a server as many as there are.
    free = not writers if database.location.is_file else row.id not in writers
    _one(context, row, writers.get(row.id), targets, free=free)


COLUMNS: dict[str, Any] = {
    # As wide as a phone leaves room for what follows.
    "campaign": st.column_config.TextColumn("campaign", width=150),
    "progress": st.column_config.ProgressColumn("progress", min_value=0, max_value=1, format="percent"),
    "times as fast": st.column_config.NumberColumn(
        "times as fast", format="%.2f", help="As the baselines, over all workloads: geometric mean"
    ),
}


def _who_measures(writers: list[int]) -> None:
    if not writers:
        st.caption("Nobody measures into this database now.")
    for writer in writers:
        who = f"Process {writer}" if writer else "A process that cannot be seen from here"
        st.info(f"{who} measures into this database.", icon=":material/sensors:")


def _line(context: Context, row: CampaignRow, writer: int | None, targets: dict[str, TargetRow]) -> dict[str, Any]:
    progress = progress_of(context, row)
    failed = sum(count for status, count in row.statuses.items() if status is not Status.OK)
    return {
        "campaign": shortened(row.name),
        "state": running.state(row, writer),
        "progress": progress.share,
        "times as fast": speedup(outcomes_of(context, row)),
        "trials": progress.done,
        "failed": failed,
        "workloads": row.workloads,
        "target": target_name(targets.get(row.target or "")),
    }


def _one(context: Context, row: CampaignRow, writer: int | None, targets: dict[str, TargetRow], *, free: bool) -> None:
    st.subheader(plain(shortened(row.name, MOST_LETTERS)))
    progress = progress_of(context, row)
    state = running.state(row, writer)
    found = outcomes_of(context, row)
    fast = speedup(found)
    failed = {status: count for status, count in row.statuses.items() if status is not Status.OK}
    if progress.share is not None and row.state is not CampaignState.FINISHED:
        st.progress(progress.share, text=f"{progress.done} trials, about {progress.share:.0%} of what was asked for")
    left = progress.left_s if state == CampaignState.RUNNING else None
    with st.container(horizontal=True, gap="medium"):
        st.metric("State", state, width="content")
        st.metric("Best against baseline", "-" if fast is None else f"{fast:.2f} x", width="content")
        st.metric("Trials", progress.done, width="content")
        st.metric("Failures", sum(failed.values()), width="content")
        st.metric("Time left", "-" if left is None else f"about {duration(left)}", width="content")
    share = f", {row.measuring_s / row.wall_s:.0%} of it measuring" if row.measuring_s and row.wall_s else ""
    st.caption(
        f"On {plain(target_name(targets.get(row.target or '')))}. Ran for {duration(row.wall_s)}{share}. "
        f"{row.reused} measurements were there already."
    )
    _actions(context, row, writer, state, free=free)
    preliminary = sum(each.stage is Stage.SEARCH for each in found)
    routed = any(each.routing != "none" for each in found)
    table(
        "outcomes",
        [_outcome(each, routed) for each in found],
        empty="Nothing that works was found yet.",
        columns=OUTCOME_COLUMNS,
    )
    if preliminary:
        st.caption(f"{preliminary} of these are preliminary: not measured again beside their baseline yet.")
    ended = [{"status": str(status), "measurements": count} for status, count in sorted(row.statuses.items())]
    _gains(found)
    folded_table("How measurements ended", "statuses", lambda: ended, empty="Nothing was measured yet.")
    _log(context, row)
    context.link("search", "How it searched, and why it chose what it chose", campaign=row.name)


def _gains(found: list[OutcomeRow]) -> None:
    """How much faster each workload is. The first look leaves it out: what a browser needs for charts takes a while to
    load, and nobody should wait for it to see how far a campaign has come."""
    made = gains_figure(found)
    if made is not None and st.session_state.get(SEEN):
        charts.show(made, "gains")
    st.session_state[SEEN] = True


def gains_figure(found: list[OutcomeRow]) -> go.Figure | None:
    """Times as fast as the fastest baseline over tokens, a point for each workload; None where nothing is known."""
    rows = [(row, row.baseline_us / row.best_us) for row in found if row.baseline_us and row.best_us]
    if not rows:
        return None
    made = charts.figure(340)
    colours = charts.colours({row.operator for row, _ in rows})
    for operator, colour in colours.items():
        mine = [(row, ratio) for row, ratio in rows if row.operator == operator]
        made.add_scatter(
            x=[row.tokens for row, _ in mine],
            y=[ratio for _, ratio in mine],
            customdata=[
                [hover(f"{row.shape}{at_routing(row.routing)}"), hover(row.variant), hover(row.baseline)]
                for row, _ in mine
            ],
            mode="markers",
            name=hover(operator),
            marker={"color": colour, "size": 7, "opacity": 0.7},
            hovertemplate="%{x} tokens, %{customdata[0]}<br>%{y:.3f} times as fast: %{customdata[1]} against "
            "%{customdata[2]}<extra>%{fullData.name}</extra>",
        )
    made.add_hline(y=1, line={"color": charts.BASELINE_COLOUR, "width": 1, "dash": "dash"})
    charts.tokens_axis(made, [row.tokens for row, _ in rows])
    made.update_yaxes(title="times as fast as the baseline", rangemode="tozero")
    return made


OUTCOME_COLUMNS: dict[str, Any] = {
    name: st.column_config.NumberColumn(name, format=format_)
    for name, format_ in (("best µs", "%.2f"), ("baseline µs", "%.2f"), ("times as fast", "%.3f"))
}


def _actions(context: Context, row: CampaignRow, writer: int | None, state: str, *, free: bool) -> None:
    """Stop what runs, go on with what stopped.

    :param free: whether a campaign can begin.
    """
    if not context.person.reviews:
        return
    failed = running.trouble(context.location)
    if failed and writer is None:
        st.error(f"It could not go on: {plain(failed)}")
    if state == CampaignState.RUNNING:
        asked = running.was_asked(context.location, writer)
        st.button(
            "Stopping after this measurement" if asked else "Stop",
            on_click=_tell,
            args=(context, row.name, CampaignAction.STOP),
            disabled=asked,
            icon=":material/stop_circle:",
            key="stop",
        )
    elif state in (CampaignState.STOPPED, CampaignState.FAILED, running.KILLED):
        st.button(
            "Go on",
            on_click=_tell,
            args=(context, row.name, CampaignAction.RESUME),
            disabled=not free,
            icon=":material/play_circle:",
            key="resume",
            help="Starts the command below on this machine; it goes on when the dashboard ends.",
        )
        st.code(running.resume_command(row.name, context.location), language="sh")
    said = st.session_state.pop("campaign-said", None)
    if said:
        st.warning(plain(said))


def _tell(context: Context, name: str, what: CampaignAction) -> None:
    """What a button does; what keeps it from being done is shown when the page is drawn next."""
    try:
        act(context, name, what)
    except (MegatuneError, DatabaseError) as error:
        st.session_state["campaign-said"] = str(error)


def act(context: Context, name: str, what: CampaignAction) -> None:
    """Stop a campaign or have it go on; the log says so where it was done.

    :raises MegatuneError: for somebody who may only look, and when it cannot be done.
    :raises DatabaseError: when the database cannot be written.
    """
    with context.writing() as session:
        reviews.log_campaign(session, name, what, By(context.person.name))
        if what is CampaignAction.RESUME:
            running.resume(name, context.location)
        elif (database := context.source.database()) is not None:
            running.ask_to_stop(database, name)


def _log(context: Context, row: CampaignRow) -> None:
    found = context.read(queries.campaign_log, row.id)
    if found:
        lines = [{"when (UTC)": each.at, "who": each.who, "action": each.action.value} for each in found]
        folded_table("Who stopped it and had it go on", "campaign-log", lambda: lines, empty="")


def progress_of(context: Context, row: CampaignRow) -> Progress:
    """How far the campaign has come: by its trials, or by its time where only that is limited."""
    done = sum(row.trials.values())
    total = running.declared_trials(row.file_text)
    if row.state is CampaignState.FINISHED:
        return Progress(done, 1.0, 0.0)
    pace = context.read(queries.trial_pace_s, row.id)
    if total:
        left = None if pace is None else max(0, total - done) * pace
        # Finalists come on top of what was declared, so that it ends when it says that it is finished.
        return Progress(done, min(NEARLY, done / total), left)
    minutes, seconds = (row.budget.get(name) or 0.0 for name in ("minutes", "seconds"))
    limit_s = 60 * float(minutes) + float(seconds)
    if limit_s > 0:
        return Progress(done, min(NEARLY, row.wall_s / limit_s), max(0.0, limit_s - row.wall_s))
    return Progress(done, None, None)


def _outcome(row: OutcomeRow, routed: bool) -> dict[str, Any]:
    """
    :param routed: whether rows have a routing.
    """
    return {
        "operator": row.operator,
        "shape": row.shape,
        **({"routing": row.routing} if routed else {}),
        "tokens": row.tokens,
        "best": row.variant,
        "best µs": row.best_us,
        "baseline": row.baseline,
        "baseline µs": row.baseline_us,
        "times as fast": row.baseline_us / row.best_us if row.baseline_us and row.best_us else None,
        "stage": str(row.stage),
        "provenance": str(row.provenance),
        "regime": str(row.regime),
        "config": row.config,
    }
