"""Health: who measures, what is quarantined, canaries, what fails and hangs and where, and the database's size."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app import running
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.outcomes import duration
from megatune_dashboard.app.outcomes import target_name
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.text import shortened
from megatune_dashboard.app.verifications import canaries_figure
from megatune_dashboard.app.verifications import canary_rows
from megatune_dashboard.app.verifications import document
from megatune_dashboard.app.verifications import repeat_rows
from megatune_db import queries
from megatune_db.leases import LEASE_S
from megatune_db.leases import STRIKES
from megatune_db.place import is_gone
from megatune_db.place import readable
from megatune_db.queries import FailingConfig
from megatune_db.queries import FailureRow
from megatune_db.queries import TroubledJob
from megatune_db.queries import WorkerRow
from megatune_db.records import CampaignState
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_kernels.errors import MegatuneError
from megatune_planner.verifying.verification import Verdict

TITLE = "Health"
ICON = ":material/monitor_heart:"
PATH = "health"

EVERY_S = 5
"""Seconds between looks at who measures."""
DANGEROUS = (Status.HANG, Status.CRASH)
"""What costs a worker: such a config is never launched again, because its row is there."""
MOST = 200
MOST_VERIFICATIONS = 100
MEASURING = "measuring"
NUMBERS = {
    name: st.column_config.NumberColumn(format="%.3f") for name in ("then µs", "now µs", "now over then", "low", "high")
}


def page(context: Context) -> None:
    st.title("Health")
    st.fragment(_workers, run_every=EVERY_S)(context)
    _quarantined(context)
    _canaries(context)
    _infrastructure(context)
    _failing(context)
    _hangs(context)
    _latest(context)
    _size(context)


def _workers(context: Context) -> None:
    """Who measures now, and what campaigns say of themselves that is not so."""
    st.subheader("Who measures", anchor=False)
    database = context.source.database()
    if database is None:
        return
    writers = running.coordinators(database)
    rows = context.read(queries.campaigns)
    active = [row for row in rows if row.state is CampaignState.RUNNING]
    # Asked anew at every look: a worker that falls silent commits nothing.
    known = context.read_at(int(time.monotonic() / EVERY_S), queries.workers)
    measuring = [each for each in known if worker_state(each) == MEASURING]
    if not writers and not measuring:
        st.write("Nobody measures into this database now.")
        for row in active:
            st.warning(
                f"{plain(row.name)} was running when its process ended. Nothing that was measured is lost; to go on:"
            )
            st.code(running.resume_command(row.name, context.location), language="sh")
    for row in rows:
        if (writer := writers.get(row.id)) is not None:
            who = f"Process {writer}" if writer else "A process that cannot be seen from here"
            waiting = row.trials.get(TrialState.ASKED, 0)
            st.write(f"{who} runs {plain(row.name)}: {waiting} configs are being built or measured.")
    if known:
        names = {each.digest: target_name(each) for each in context.read(queries.targets, counted=False)}
        table("workers", [_worker(each, names) for each in known], empty="")


def worker_state(each: WorkerRow) -> str:
    """What is known of a process that measured: it may have ended without saying so."""
    if each.ended:
        return "ended"
    if is_gone(each.place):
        return "gone"
    return "silent" if each.silent_s > LEASE_S else MEASURING


def _worker(each: WorkerRow, names: dict[str, str]) -> dict[str, Any]:
    return {
        "worker": each.id,
        "state": worker_state(each),
        "process": readable(each.place),
        "campaign": shortened(each.campaign, 60),
        "jobs": each.leased,
        "heard of": f"{duration(max(0.0, each.silent_s))} ago",
        "ran": duration(max(0.0, each.ran_s)),
        "why it ended": each.ended,
        "target": names.get(each.target, each.target),
        "provenance": str(each.provenance),
    }


def _quarantined(context: Context) -> None:
    """What no campaign launches again, and what is given up for now."""
    st.subheader("Quarantined configs", anchor=False)
    dangerous = context.read(queries.failing_configs, statuses=DANGEROUS)
    names = {each.digest: target_name(each) for each in context.read(queries.targets, counted=False)}
    table("quarantined", [_config(each, names) for each in dangerous], empty="No config has hung or crashed.")
    if dangerous:
        st.caption(
            "A config that hung or crashed is quarantined: its row keeps every campaign with the same kernels from "
            "launching it again." + (f" The {len(dangerous)} worst." if len(dangerous) == queries.MOST_FAILING else "")
        )


def _infrastructure(context: Context) -> None:
    """Jobs that workers gave up, lost, or needed several tries for: no fault of their config unless it has strikes."""
    st.subheader("Failed by infrastructure", anchor=False)
    found = context.read(queries.troubled_jobs)
    table("troubled-jobs", [_job(each) for each in found], empty="Every job gave a measurement at its first try.")
    if found:
        st.caption(
            "Lost: given up after several workers failed, with no word of the config. Done: measured after all. A "
            f"config that brings down what measures it {STRIKES} times is quarantined."
        )


def _job(each: TroubledJob) -> dict[str, Any]:
    return {
        "campaign": shortened(each.campaign, 60),
        "state": str(each.state),
        "tries that failed": len(each.failures),
        "brought down": each.strikes,
        "quarantined": each.strikes >= STRIKES,
        "last reason": shortened(each.failures[-1].get("reason", "") if each.failures else ""),
        "workers": ", ".join(dict.fromkeys(str(failure.get("worker")) for failure in each.failures)),
        "operator": each.operator,
        "shape": each.shape,
        "tokens": each.tokens,
        "stage": str(each.stage),
        "configs": shortened("; ".join(each.configs)),
    }


def _canaries(context: Context) -> None:
    """Whether the machine is still the one that plans were made on."""
    st.subheader("Canaries", anchor=False)
    pairs = []
    for row in context.read(queries.verifications, limit=MOST_VERIFICATIONS):
        # What another version wrote is said on the page Exports.
        with contextlib.suppress(MegatuneError):
            pairs.append((row, document(row)))
    if not pairs:
        st.caption("No plan has been verified yet: megatune verify measures canaries beside what it compares.")
        return
    row, latest = pairs[0]
    (st.success if latest.machine.verdict is Verdict.HOLDS else st.warning)(
        f"{row.at:%Y-%m-%d %H:%M} UTC, plan {plain(row.name)}: {plain(latest.machine.reason)}"
    )
    made = canaries_figure(pairs)
    if made is not None:
        charts.show(made, "canaries-chart")
        st.caption("Configs away from every boundary; dashed: by how much two sessions of one machine may differ.")
    folded_table("As a table", "canaries", lambda: canary_rows(pairs), empty="", columns=NUMBERS)
    repeated = context.read(queries.repeats)
    if repeated:
        folded_table(
            "Campaigns that were run again with other seeds", "repeats", lambda: repeat_rows(repeated), empty=""
        )


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


def _failing(context: Context) -> None:
    st.subheader("Failing configs", anchor=False)
    names = {each.digest: target_name(each) for each in context.read(queries.targets, counted=False)}
    counts = dict(sorted(context.read(queries.failure_counts).items(), key=lambda item: item[1]))
    if not counts:
        st.write("No config has failed.")
        return
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
    st.caption("Red: quarantined, as above. The others are facts of a space, and no alarm.")
    folded_table(
        f"The configs that fail most often, at most {queries.MOST_FAILING}",
        "failing-configs",
        lambda: [_config(each, names) for each in context.read(queries.failing_configs)],
        empty="",
    )


def _config(each: FailingConfig, names: dict[str, str]) -> dict[str, Any]:
    return {
        "status": str(each.status),
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
