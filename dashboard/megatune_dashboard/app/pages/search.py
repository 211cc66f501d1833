"""Search: how a campaign looked for the best config of a workload, what failed, and why it chose what it chose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app import search_charts
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.latency_chart import tokens_words
from megatune_dashboard.app.outcomes import outcomes_of
from megatune_dashboard.app.pages.explore import shape_box
from megatune_dashboard.app.pages.explore import shape_label
from megatune_dashboard.app.pages.explore import view_of
from megatune_dashboard.app.pages.explore import whole_name
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.text import shortened
from megatune_dashboard.app.welcome import welcome
from megatune_db import queries
from megatune_db.queries import CampaignRow
from megatune_db.queries import TrialRow
from megatune_db.queries import WorkloadName
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operators
from megatune_kernels.target import architecture
from megatune_planner.band_schema import Band
from megatune_planner.rendering import decision_text
from megatune_planner.rendering import facts_text
from megatune_planner.rendering import tokens_text
from megatune_planner.shape_view import Tie

TITLE = "Search"
ICON = ":material/manage_search:"
PATH = "search"

PARTS = ("History", "Parameters", "Coverage", "Failures", "Why this config")
FEWEST = 3
"""Configs of a variant that worked, for something to be said of its parameters."""
COUNTED = 20_000
"""Combinations of values up to which the legal configs of a space are counted: it takes a moment for more."""
NUMBERS: dict[str, Any] = {
    name: st.column_config.NumberColumn(name, format=spelled)
    for name, spelled in (
        ("median µs", "%.3f"),
        ("low µs", "%.3f"),
        ("high µs", "%.3f"),
        ("best µs", "%.3f"),
        ("over best", "%.4f"),
        ("low", "%.4f"),
        ("high", "%.4f"),
    )
} | {"tried": st.column_config.ProgressColumn("tried", min_value=0, max_value=1, format="percent")}


def page(context: Context) -> None:
    names = context.read(queries.campaign_names)
    if not names:
        welcome(context)
        return
    st.title("Search")
    chosen = _filters(context, names)
    if chosen is not None:
        # Apart, so that what is chosen below does not ask for everything above again.
        st.fragment(_parts)(context, *chosen)


def _parts(context: Context, row: CampaignRow, workload: WorkloadName) -> None:
    trials = context.read(queries.trials, row.id, workload=workload.digest)
    part = st.segmented_control("Look at", PARTS, default=PARTS[0], key="part", bind="query-params", required=True)
    if part == "Parameters":
        _parameters(trials, workload)
    elif part == "Coverage":
        _coverage(context, row, trials, workload)
    elif part == "Failures":
        _failures(context, row, workload)
    elif part == "Why this config":
        _why(context, row, workload)
    else:
        _history(trials, workload)


def _filters(context: Context, names: Sequence[str]) -> tuple[CampaignRow, WorkloadName] | None:
    columns, below = st.columns(3), st.container()
    with columns[0]:
        name = st.selectbox("Campaign", names, key="campaign", bind="query-params", format_func=shortened)
    row = context.read(queries.campaign, name)
    if row is None:
        st.info("The campaign is not there any more.")
        return None
    workloads = context.read(queries.campaign_workloads, row.id)
    if not workloads:
        st.info("The campaign has no trial yet.")
        return None
    shapes: dict[str, list[WorkloadName]] = {}
    for each in workloads:
        shapes.setdefault(f"{each.operator} {shape_label(each)}", []).append(each)
    shape, (beside, *_) = shape_box(list(shapes), columns[1:], below)
    by_tokens = {str(each.tokens): each for each in shapes[shape]}
    with beside:
        tokens = st.selectbox("Tokens", list(by_tokens), key="tokens", bind="query-params")
    whole_name(shape)
    if facts := by_tokens[tokens].facts:
        st.caption(plain(f"Of this workload: {facts_text(facts)}"))
    return row, by_tokens[tokens]


def _baselines(workload: WorkloadName) -> tuple[str, ...]:
    tuned = operators().get(workload.operator)
    return () if tuned is None else tuned.baselines


def _history(trials: Sequence[TrialRow], workload: WorkloadName) -> None:
    found = search_charts.searched(trials)
    waiting = sum(trial.state is TrialState.ASKED for trial in trials)
    stale = sum(trial.state is TrialState.STALE for trial in trials)
    if not any(trial.median_us is not None for trial in found):
        st.info("No config has worked yet: there is no best to show.")
    if found:
        charts.show(search_charts.history_figure(found, _baselines(workload)), "history")
    notes = [f"{sum(trial.reused for trial in found)} of {len(found)} were measured before this campaign."]
    if waiting:
        notes.append(f"{waiting} are being built or measured.")
    if stale:
        notes.append(f"{stale} were asked for by a process that ended before it measured them.")
    st.caption(" ".join(notes))
    folded_table(
        "All trials",
        "trials",
        lambda: [_trial(trial) for trial in trials],
        empty="No trial yet.",
        columns=NUMBERS,
    )


def _trial(trial: TrialRow) -> dict[str, Any]:
    return {
        "number": trial.number,
        "variant": trial.variant,
        "median µs": trial.median_us,
        "low µs": trial.low_us,
        "high µs": trial.high_us,
        "status": str(trial.status or trial.state),
        "stage": str(trial.stage or ""),
        "proposed by": trial.reason,
        "reused": trial.reused,
        "params": _params(trial.params),
        "config": trial.config,
    }


def _params(params: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(params.items()))


def _variant(trials: Sequence[TrialRow], workload: WorkloadName) -> str | None:
    """The variant whose parameters are looked at: the one that worked most often comes first."""
    counts = Counter(
        trial.variant
        for trial in search_charts.searched(trials)
        if trial.median_us is not None and trial.variant not in _baselines(workload)
    )
    enough = [variant for variant, count in counts.most_common() if count >= FEWEST]
    if not enough:
        st.info(f"Fewer than {FEWEST} configs of any variant have worked: nothing can be said of parameters yet.")
        return None
    chosen: str = st.selectbox("Variant", enough, key="variant", bind="query-params", format_func=shortened)
    return chosen


def _parameters(trials: Sequence[TrialRow], workload: WorkloadName) -> None:
    variant = _variant(trials, workload)
    if variant is None:
        return
    found = search_charts.searched(trials)
    study = search_charts.study_of(found, variant)
    names = search_charts.parameters_of(study)
    if not names:
        st.info("All configs that worked have the same parameters.")
        return
    shown = len(study.get_trials(deepcopy=False))
    count = sum(trial.variant == variant and trial.median_us is not None for trial in found)
    st.subheader("All parameters at once", anchor=False)
    charts.show(search_charts.parallel_figure(study), "parallel")
    st.subheader("Which matter", anchor=False)
    if len(names) > 1 and len({trial.value for trial in study.get_trials(deepcopy=False)}) > 1:
        charts.show(search_charts.importances_figure(study), "importances")
    else:
        st.caption("One parameter, or one time: there is nothing to weigh.")
    st.subheader("One by one", anchor=False)
    parameter = st.selectbox("Parameter", names, key="parameter", bind="query-params", format_func=shortened)
    charts.show(search_charts.slice_figure(study, parameter), "slice")
    if shown < count:
        st.caption(f"Of {count} configs {shown} are shown, evenly over their times.")


def _coverage(context: Context, row: CampaignRow, trials: Sequence[TrialRow], workload: WorkloadName) -> None:
    """How much of the space was tried, by the values of each parameter."""
    tuned = operators().get(workload.operator)
    arch = next(
        (
            str(each.hardware.get("arch"))
            for each in context.read(queries.targets, counted=False)
            if each.digest == row.target
        ),
        None,
    )
    if tuned is None or arch is None:
        st.info("The space is not known here: the operator is not installed, or nothing was measured.")
        return
    try:
        made = Workload.of(
            workload.operator,
            workload.dims,
            workload.tokens,
            dtype=workload.dtype,
            world=workload.world,
            routing=workload.routing,
        )
        space = tuned.space(made, architecture(arch))
    except (MegatuneError, KeyError, ValueError) as error:
        st.info(f"The space is not known here: {plain(error)}")
        return
    tried = [trial for trial in search_charts.searched(trials) if trial.variant in space.by_variant]
    legal = _legal(made, arch)
    size = f"of {legal} legal ones" if legal is not None else "of a space that is too large to count quickly"
    share = f", {len(tried) / legal:.1%}" if legal else ""
    st.markdown(f"**{len(tried)}** configs were measured {size}{share}.")
    rows = []
    for variant in space.variants:
        mine = [trial for trial in tried if trial.variant == variant.variant]
        for parameter in variant.parameters:
            for value in parameter.values:
                with_it = [trial for trial in mine if trial.params.get(parameter.name) == value]
                times = [trial.median_us for trial in with_it if trial.median_us is not None]
                rows.append(
                    {
                        "variant": variant.variant,
                        "parameter": parameter.name,
                        "value": str(value),
                        "tried": len(with_it) / len(mine) if mine else 0.0,
                        "configs": len(with_it),
                        "failed": sum(trial.status is not Status.OK for trial in with_it),
                        "best µs": min(times, default=None),
                        "changes bits": parameter.changes_bits,
                        "meaning": parameter.meaning,
                    }
                )
    table("coverage", rows, empty="The space has no parameters.", columns=NUMBERS)


@lru_cache(maxsize=512)
def _legal(workload: Workload, arch: str) -> int | None:
    """How many configs a workload has; None where counting them would keep a person waiting."""
    space = operators()[workload.operator].space(workload, architecture(arch))
    combinations = sum(math.prod(len(p.values) for p in variant.parameters) for variant in space.variants)
    return len(space) if combinations <= COUNTED else None


def _failures(context: Context, row: CampaignRow, workload: WorkloadName) -> None:
    found = context.read(queries.failures, campaign_id=row.id, workload=workload.digest)
    everywhere = {status: count for status, count in row.statuses.items() if status is not Status.OK}
    if everywhere:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(everywhere.items()))
        st.caption(f"Over the whole campaign: {counts}. A config that does not work is no fault of yours.")
    rows = [
        {
            "status": str(each.status),
            "reason": each.reason,
            "variant": each.variant,
            "params": _params(each.params),
            "stage": str(each.stage),
            "measured at (UTC)": each.measured_at,
            "config": each.config,
        }
        for each in found
    ]
    reasons = Counter((each.status, each.reason) for each in found)
    grouped = [
        {"status": str(status), "configs": count, "reason": reason} for (status, reason), count in reasons.most_common()
    ]
    table("reasons", grouped, empty="Nothing failed at this workload.")
    if rows:
        folded_table("Each config", "failures", lambda: rows, empty="")


def _why(context: Context, row: CampaignRow, workload: WorkloadName) -> None:
    """The tie set, and what planning makes of it."""
    outcome = next((each for each in outcomes_of(context, row) if each.workload == workload.digest), None)
    shape = None
    if outcome is not None:
        shape = next(
            (
                each
                for each in context.read(queries.measured_shapes)
                if (each.target, each.regime, each.provenance) == (row.target, outcome.regime, outcome.provenance)
                and any(digest == workload.digest for _, digest in each.workloads)
            ),
            None,
        )
    if shape is None:
        st.info("Nothing has worked at this workload yet, so that nothing can be chosen.")
        return
    view = view_of(context, shape)
    ties = view.ties.get(workload.tokens, ())
    if not ties:
        st.info("No config has worked at this workload.")
        return
    tokens = workload.tokens
    if view.plan is not None:
        band = view.plan.band(tokens)
        st.markdown(
            f"Planning runs **{plain(decision_text(band.decision))}** at {plain(_at(band))}: {plain(band.reason)}."
        )
    else:
        st.info("No baseline was measured, so that nothing can be said to win.")
    at = tokens_words(tokens)
    if len(ties) == 1:
        st.caption(f"At {at} one config is faster than all others beyond doubt.")
    else:
        paired = sum(tie.over_best.paired for tie in ties)
        st.caption(
            f"At {at} {len(ties)} configs are not significantly slower than the best, which is one of them; {paired} "
            "were measured beside it, sample by sample. What is left out is slower beyond doubt."
        )
        charts.show(search_charts.ties_figure(ties), "ties")
    st.caption(
        "Among ties planning takes what serves at neighbouring tokens, then the default or the incumbent, then the "
        "simpler config, and never the one that is ahead by luck. A config that is slower here can serve all the same, "
        "where one config for several tokens is worth more than the best at each."
    )
    if len(ties) > search_charts.MOST_TIES:
        st.caption(f"The chart shows the first {search_charts.MOST_TIES}, the table all.")
    table("tie-set", [_tie(place, tie) for place, tie in enumerate(ties, 1)], empty="", columns=NUMBERS)
    fastest = view.baselines.get(tokens, ())
    if fastest:
        rows = [
            {"baseline": each.variant, "median µs": each.median_us, "low µs": each.low_us, "high µs": each.high_us}
            for each in fastest
        ]
        folded_table("Baselines here", "baselines", lambda: rows, empty="", columns=NUMBERS)


def _at(band: Band) -> str:
    text = tokens_text(band)
    return tokens_words(1) if text == "1" else f"{text} tokens"


def _tie(place: int, tie: Tie) -> dict[str, Any]:
    each = tie.candidate
    return {
        "place": place,
        "variant": each.variant,
        "median µs": each.median_us,
        "over best": tie.over_best.ratio,
        "low": tie.over_best.low,
        "high": tie.over_best.high,
        "paired": tie.over_best.paired,
        "stage": str(each.stage),
        "params": _params(dict(each.params)),
        "config": each.config,
    }
