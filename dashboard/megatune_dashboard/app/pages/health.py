"""Health: what fails, what hangs and where, how large the database is, and who writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app import running
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.outcomes import target_name
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_db import queries
from megatune_db.queries import FailingConfig
from megatune_db.queries import FailureRow
from megatune_db.records import CampaignState
from megatune_db.records import Status
from megatune_db.records import TrialState

TITLE = "Health"
ICON = ":material/monitor_heart:"
PATH = "health"

EVERY_S = 5
"""Seconds between looks at who measures."""
DANGEROUS = (Status.HANG, Status.CRASH)
"""What costs a worker: such a config is never launched again, because its row is there."""
MOST = 200


def page(context: Context) -> None:
    st.title("Health")
    st.fragment(_workers, run_every=EVERY_S)(context)
    _size(context)
    failing = context.read(queries.failing_configs)
    _failing(context, failing)
    _hangs(context)
    _latest(context)


def _workers(context: Context) -> None:
    """Who measures now, and what campaigns say of themselves that is not so."""
    st.subheader("Who measures", anchor=False)
    database = context.source.database()
    if database is None:
        return
    writer = database.writer()
    rows = context.read(queries.campaigns)
    active = [row for row in rows if row.state is CampaignState.RUNNING]
    if writer is None:
        st.write("Nobody measures into this database now.")
        for row in active:
            st.warning(
                f"{plain(row.name)} was running when its process ended. Nothing that was measured is lost; to go on:"
            )
            st.code(running.resume_command(row.name, context.location), language="sh")
        return
    who = "A process that cannot be seen from here" if writer == 0 else f"Process {writer}"
    for row in active:
        waiting = row.trials.get(TrialState.ASKED, 0)
        st.write(f"{who} runs {plain(row.name)}: {waiting} configs are being built or measured.")
    if not active:
        st.write(f"{who} holds the database for a recording or an upgrade.")


def _size(context: Context) -> None:
    st.subheader("Database", anchor=False)
    size = context.read(queries.table_sizes)
    where = context.location
    text = f"{_mb(size.bytes)} in {plain(where)}"
    if where.is_file and size.free_bytes is not None:
        log = _bytes_of(where.path.with_name(where.path.name + "-wal"))
        text += f", {_mb(size.free_bytes)} of them free for more rows, and {_mb(log)} in its log"
    st.write(f"{text}.")
    rows = [{"table": name, "rows": count} for name, count in size.rows.items()]
    folded_table("Rows", "rows", lambda: rows, empty="")


def _failing(context: Context, failing: Sequence[FailingConfig]) -> None:
    st.subheader("Failing configs", anchor=False)
    if not failing:
        st.write("No config has failed.")
        return
    counts = dict(sorted(context.read(queries.failure_counts).items(), key=lambda item: item[1]))
    made = charts.figure(90 + 34 * len(counts))
    made.add_trace(
        go.Bar(
            x=list(counts.values()),
            y=[str(status) for status in counts],
            orientation="h",
            marker={"color": [charts.LIMIT_COLOUR if s in DANGEROUS else charts.COLOURS[1] for s in counts]},
            hovertemplate="%{x} measurements ended %{y}<extra></extra>",
        )
    )
    made.update_xaxes(title="measurements")
    made.update_yaxes(automargin=True)
    charts.show(made, "statuses")
    st.caption(
        "A config that hung or crashed is quarantined: its row keeps every campaign with the same kernels from "
        "launching it again. The others are facts of a space, and no alarm."
    )
    names = {each.digest: target_name(each) for each in context.read(queries.targets, counted=False)}
    table("failing-configs", [_config(each, names) for each in failing], empty="")
    if len(failing) == queries.MOST_FAILING:
        st.caption(f"The {queries.MOST_FAILING} that fail most often.")


def _config(each: FailingConfig, names: dict[str, str]) -> dict[str, Any]:
    return {
        "status": str(each.status),
        "quarantined": each.status in DANGEROUS,
        "workloads": each.measurements,
        "operator": each.operator,
        "variant": each.variant,
        "params": " ".join(f"{name}={value}" for name, value in sorted(each.params.items())),
        "target": names.get(each.target, each.target),
        "config": each.config,
    }


def _hangs(context: Context) -> None:
    st.subheader("Hangs", anchor=False)
    found = context.read(queries.failures, statuses=(Status.HANG,), most=MOST)
    table("hangs", [_failure(each) for each in found], empty="Nothing has hung.")
    if found:
        st.caption("The reason names the rank and the phase that stopped.")


def _latest(context: Context) -> None:
    folded_table(
        "Latest failures of every kind",
        "latest-failures",
        lambda: [_failure(each) for each in context.read(queries.failures, most=MOST)],
        empty="Nothing has failed.",
    )


def _failure(each: FailureRow) -> dict[str, Any]:
    return {
        "measured at (UTC)": each.measured_at,
        "status": str(each.status),
        "reason": each.reason,
        "operator": each.operator,
        "shape": each.shape,
        "tokens": each.tokens,
        "world": each.world,
        "variant": each.variant,
        "params": " ".join(f"{name}={value}" for name, value in sorted(each.params.items())),
        "stage": str(each.stage),
        "provenance": str(each.provenance),
        "config": each.config,
    }


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
