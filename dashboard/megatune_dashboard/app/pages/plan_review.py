"""Plan review: what a plan changes, what is weak about it, and the decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app.bands import bands_figure
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.pages.plan_actions import decide
from megatune_dashboard.app.pages.plan_actions import log_table
from megatune_dashboard.app.pages.plan_step import predicted_step
from megatune_dashboard.app.plans import SHORT
from megatune_dashboard.app.plans import band_evidence
from megatune_dashboard.app.plans import band_rows
from megatune_dashboard.app.plans import change_rows
from megatune_dashboard.app.plans import config_names
from megatune_dashboard.app.plans import effect_text
from megatune_dashboard.app.plans import evidence_at
from megatune_dashboard.app.plans import evidence_rows
from megatune_dashboard.app.plans import find_shape
from megatune_dashboard.app.plans import label
from megatune_dashboard.app.plans import loaded
from megatune_dashboard.app.plans import service_text
from megatune_dashboard.app.plans import shape_key
from megatune_dashboard.app.plans import shape_title
from megatune_dashboard.app.plans import stock_key
from megatune_dashboard.app.plans import stock_rows
from megatune_dashboard.app.plans import stock_title
from megatune_dashboard.app.plans import summary_rows
from megatune_dashboard.app.plans import threshold_rows
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.welcome import welcome
from megatune_db import queries
from megatune_db.queries import PlanSummary
from megatune_db.records import PlanState
from megatune_kernels.errors import MegatuneError
from megatune_planner.against_stock import StockComparison
from megatune_planner.against_stock import against_stock
from megatune_planner.differences import PlanDifference
from megatune_planner.differences import ShapeDifference
from megatune_planner.differences import difference
from megatune_planner.plan import Plan
from megatune_planner.rendering import tokens_text
from megatune_planner.review_warnings import ReviewWarning
from megatune_planner.review_warnings import review_warnings
from megatune_planner.routings import changes_text
from megatune_planner.thresholds import thresholds

TITLE = "Plan review"
ICON = ":material/rule:"
PATH = "plans"

STOCK = "stock"
MOST_SHAPES = 4
"""That are shown one below the other: every one costs a chart and a table."""
MICROSECONDS = st.column_config.NumberColumn(format="%.3f")
PERCENT = st.column_config.NumberColumn(format="%.1f")
COLUMNS = {
    "now µs": MICROSECONDS,
    "this plan µs": MICROSECONDS,
    "stock µs": MICROSECONDS,
    "median µs": MICROSECONDS,
    "low µs": MICROSECONDS,
    "high µs": MICROSECONDS,
    "time %": st.column_config.NumberColumn(format="%+.1f"),
    "saves %": PERCENT,
    "predicted %": PERCENT,
    "value": st.column_config.NumberColumn(format="%.6g"),
}
HEADLINES = {
    "crossover": "crossovers are suspect or contested",
    "verification": "verifying did not show that it holds",
    "toolchain": "the toolchain has changed since, and nobody has verified it",
    "repeatability": "bands are not repeatable",
    "provenance": "not all evidence was measured here",
    "margin": "margins are thin",
    "pairing": "shapes were compared across sessions",
    "prediction": "shapes have bands that are partly predicted",
    "gap": "gaps in what was measured",
}
GRAVE = ("crossover", "verification", "toolchain", "repeatability", "provenance", "margin")
"""Kinds of warnings that can make a plan wrong, rather than less sure."""


def page(context: Context) -> None:
    if context.source.database() is None:
        welcome(context)
        return
    st.title("Plan review")
    rows = context.read(queries.plan_summaries)
    if not rows:
        st.info("There is no plan yet. Make one from what was measured:")
        st.code(f"megatune plan --db {context.location}", language="sh")
        return
    row = _chosen(rows)
    _head(context, row)
    try:
        plan = loaded(context, row.digest)
    except MegatuneError as error:
        # It can be rejected all the same.
        st.error(f"This program cannot read the plan: {plain(error)}")
        decide(context, row, readable=False)
        log_table(context, row.digest)
        return
    _warnings(context, plan)
    _comparison(context, row, rows, plan)
    with st.expander("Thresholds: every number that decisions turn on, with its unit"):
        table("thresholds", threshold_rows(thresholds(plan)), empty="The plan has none.", columns=COLUMNS)
    decide(context, row, readable=True)
    log_table(context, row.digest)
    st.download_button(
        "Download the plan as JSON",
        partial(plan.to_json),
        file_name=f"{row.digest[:SHORT]}.plan.json",
        mime="application/json",
        icon=":material/download:",
        on_click="ignore",
    )


def _chosen(rows: Sequence[PlanSummary]) -> PlanSummary:
    """The plan that the address names; else the newest that waits for a decision."""
    by_digest = {row.digest: row for row in rows}
    wanted = st.query_params.get("plan", "")
    waiting = next((row.digest for row in rows if row.state is PlanState.DRAFT), rows[0].digest)
    start = wanted if wanted in by_digest else waiting
    digest = st.selectbox(
        "Plan",
        list(by_digest),
        index=list(by_digest).index(start),
        format_func=lambda each: label(by_digest[each]),
        help="The newest first; by default the newest draft.",
    )
    st.query_params["plan"] = digest
    return by_digest[digest]


def _head(context: Context, row: PlanSummary) -> None:
    colours = {"draft": "orange", "approved": "green", "exported": "blue", "retired": "gray"}
    words = {"exported": "exported, in service"}
    state = row.state.value
    st.badge(words.get(state, state), color=colours[state])
    targets = {each.digest: each for each in context.read(queries.targets, counted=False)}
    gpu = str(targets[row.target].hardware.get("gpu", "")) if row.target in targets else ""
    st.caption(f"For {plain(service_text(row, gpu))} · digest {row.digest}")


def _warnings(context: Context, plan: Plan) -> None:
    found = review_warnings(
        plan, context.read(queries.targets, counted=False), context.read(queries.verifications, plan.digest)
    )
    if not found:
        st.success("No warnings: every band was measured, paired with its baseline, and is clear of it.")
        return
    counts = Counter(each.kind for each in found)
    for kind, count in counts.items():
        mine = [each for each in found if each.kind == kind]
        text = f"**{HEADLINES[kind].capitalize()}**" + (f" ({count})" if count > 1 else "")
        text += f": {plain(_first(mine[0]))}"
        (st.warning if kind in GRAVE else st.info)(text, icon=":material/warning:" if kind in GRAVE else None)
    with st.expander(f"All {len(found)} warnings, with evidence" if len(found) > 1 else "The warning, with evidence"):
        rows = [
            {"kind": each.kind, "where": each.where, "what": each.text, "measurements": len(each.evidence)}
            for each in found
        ]
        state = table("warnings", rows, empty="", on_select="rerun", selection_mode="single-row")
        place = _selected(state)
        if place is not None:
            _evidence(context, plan, "warning", found[place].evidence)


def _first(warning: ReviewWarning) -> str:
    return f"{warning.where}: {warning.text}" if warning.where else warning.text


def _comparison(context: Context, row: PlanSummary, rows: Sequence[PlanSummary], plan: Plan) -> None:
    serving = context.read(queries.plan_in_service, row.digest)
    replaced = context.read(queries.replaced_plan, row.digest) if serving and serving.digest == row.digest else None
    first = replaced or serving
    names = {each.digest: label(each) for each in rows if each.digest != row.digest}
    choices = [*([first.digest] if first and first.digest in names else []), STOCK]
    choices += [digest for digest in names if digest not in choices]
    wanted = st.query_params.get("against", "")

    def spelled(choice: str) -> str:
        if choice == STOCK:
            return "stock: what serves without a plan"
        if replaced and choice == replaced.digest:
            return f"replaced by it: {names[choice]}"
        return f"in service: {names[choice]}" if serving and choice == serving.digest else names[choice]

    st.subheader("What changes")
    against = st.selectbox(
        "Against",
        choices,
        index=choices.index(wanted) if wanted in choices else 0,
        format_func=spelled,
        # Another one whenever the words of its options change: the browser would keep the old words.
        key=f"against-{row.digest}-{row.state}-{first.digest if first else STOCK}",
    )
    st.query_params["against"] = against
    if serving is None:
        st.caption("No plan is in service for this target, model and worlds: stock serves.")
    if against == STOCK:
        _against_stock(context, plan)
        return
    try:
        before = loaded(context, against)
    except MegatuneError as error:
        st.error(f"That plan cannot be compared with: {plain(error)}")
        _against_stock(context, plan)
        return
    _against_plan(context, difference(before, plan), before, plan)


def _against_stock(context: Context, plan: Plan) -> None:
    found = against_stock(plan)
    known = [each for each in found if each.stock_us is not None and each.plan_us is not None]
    stock_us = sum(each.stock_us or 0 for each in known) or None
    if not predicted_step(plan, None):
        _metrics(stock_us, sum(each.plan_us or 0 for each in known) or None, f"{len(found)} shapes", "Stock")

    def gain(each: StockComparison) -> float:
        return (each.stock_us or 0) - (each.plan_us or 0)

    ordered = {stock_key(each): each for each in sorted(found, key=gain, reverse=True)}
    for key in _at_hand({key: stock_title(each) for key, each in ordered.items()}):
        _shape_against_stock(context, key, ordered[key], plan)
    with st.expander("All shapes"):
        table("stock-shapes", stock_rows(found), empty="No shapes.", columns=COLUMNS)


def _shape_against_stock(context: Context, key: str, each: StockComparison, plan: Plan) -> None:
    shape, name = each.shape, f"bands-{key}"
    charts.show(bands_figure(("this plan", shape), (STOCK, None)), f"picture-{name}")
    for band in shape.bands:
        if changes := changes_text(band):
            st.caption(plain(f"{tokens_text(band)} tokens: {changes}"))
    rows = band_rows(shape)
    state = table(name, rows, empty="No bands.", columns=COLUMNS, on_select="rerun", selection_mode="single-row")
    place = _selected(state)
    if place is None:
        st.caption("Choose a row to see the measurements behind it.")
    else:
        _evidence(context, plan, name, band_evidence(shape)[place])


def _against_plan(context: Context, found: PlanDifference, before: Plan, plan: Plan) -> None:
    if not found.comparable:
        st.warning("Of other targets or regimes: figures of the two are not compared.", icon=":material/warning:")
    if found.gate:
        st.info(f"What it holds for changes: {plain('; '.join(found.gate))}")
    changed = [each for each in found.shapes if each.changes]
    if not (found.comparable and predicted_step(plan, before)):
        _metrics(found.before_us, found.after_us, f"{len(changed)} of {len(found.shapes)}", "Now")
    st.caption(f"{len(changed)} of {len(found.shapes)} shapes change.")
    if found.unknown:
        st.caption(f"At {found.unknown} tokens of changed bands one of the two was not measured.")
    if not changed:
        st.success("Every decision is the same.")

    def weight(each: ShapeDifference) -> float:
        return abs((each.after_us or 0) - (each.before_us or 0))

    ordered = {shape_key(each): each for each in sorted(changed, key=weight, reverse=True)}
    for key in _at_hand({key: shape_title(each) for key, each in ordered.items()}):
        _changed_shape(context, key, ordered[key], before, plan)
    with st.expander("All shapes"):
        table("shapes", summary_rows(found), empty="No shapes.", columns=COLUMNS)


def _at_hand(titles: Mapping[str, str]) -> Iterator[str]:
    """Each key with a place to draw in: one below the other where they are few, else the one that is chosen."""
    if len(titles) > MOST_SHAPES:
        keys, wanted = list(titles), st.query_params.get("shape", "")
        key = st.selectbox(
            "Shape",
            keys,
            index=keys.index(wanted) if wanted in titles else 0,
            format_func=lambda each: titles[each],
            help="The one with the largest effect comes first.",
        )
        st.query_params["shape"] = key
        yield key
        return
    for key, title in titles.items():
        with st.expander(plain(title), expanded=len(titles) <= 2):
            yield key


def _changed_shape(context: Context, key: str, shape: ShapeDifference, before: Plan, plan: Plan) -> None:
    name = f"changes-{key}"
    pair = ("this plan", find_shape(plan, shape)), ("now", find_shape(before, shape))
    charts.show(bands_figure(*pair), f"picture-{name}")
    rows = change_rows(shape)
    state = table(name, rows, empty="No changes.", columns=COLUMNS, on_select="rerun", selection_mode="single-row")
    place = _selected(state)
    if place is None:
        st.caption("Choose a row to see the measurements behind it.")
        return
    tokens = rows[place]["at tokens"]
    ids = evidence_at(plan, shape, tokens)
    _evidence(context, plan, name, ids or evidence_at(before, shape, tokens))


def _metrics(before_us: float | None, after_us: float | None, shapes: str, now: str) -> None:
    left, middle, right = st.columns(3)
    left.metric(
        f"{now}, one launch of each shape",
        "unknown" if before_us is None else f"{before_us:.2f} µs",
        help="Mean over the measured tokens, weighed by the plan's traffic, summed over the shapes.",
    )
    delta = None if before_us is None or after_us is None else f"{after_us / before_us - 1:+.1%}"
    middle.metric(
        "This plan",
        "unknown" if after_us is None else f"{after_us:.2f} µs",
        delta,
        delta_color="inverse",
        help=effect_text(before_us, after_us),
    )
    right.metric("Shapes that change" if " of " in shapes else "Shapes", shapes.removesuffix(" shapes"))


def _evidence(context: Context, plan: Plan, name: str, ids: tuple[int, ...]) -> None:
    found = context.read(queries.measurements, ids)
    table(
        f"evidence-{name}",
        evidence_rows(found, config_names(plan)),
        empty="No measurement of this database is behind it.",
        columns=COLUMNS,
    )
    if missing := len(ids) - len(found):
        st.caption(f"{missing} measurements are in another database than this one.")


def _selected(state: Any) -> int | None:
    """The row that was chosen in a table."""
    rows = state.selection.rows if state is not None else []
    return int(rows[0]) if rows else None
