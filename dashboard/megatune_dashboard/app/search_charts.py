"""Charts of one search: its history, what its parameters do, and which configs tie. Optuna draws what it draws well."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution
from optuna.distributions import CategoricalDistribution
from optuna.distributions import IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import TrialState
from optuna.trial import create_trial

from megatune_dashboard.app import charts
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import shortened
from megatune_db.queries import TrialRow
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_planner.shape_view import Tie

MOST_TRIALS = 600
"""Of a study that is drawn: Optuna takes seconds for more, and nobody tells more lines apart."""
LOGARITHMIC = 8
"""Numbers further apart than this factor are on a logarithmic axis."""
MOST_TIES = 25
MOST_TICKS = 12
"""Values of a parameter that have a tick each."""
GROUPS = (
    ("fastest tenth", 0.1, charts.COLOURS[2], 2.0),
    ("up to the middle", 0.5, charts.faint(charts.COLOURS[0], 0.45), 1.0),
    ("slower half", 1.0, charts.faint(charts.BASELINE_COLOUR, 0.3), 1.0),
)
"""Of the configs by time: their name, the share up to which they reach, colour and width."""


def searched(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The trials that were measured to search, each config once, the oldest first."""
    found: dict[str, TrialRow] = {}
    for row in rows:
        if row.status is not None and row.stage is Stage.SEARCH:
            found.setdefault(row.config, row)
    return list(found.values())


def history_figure(rows: Sequence[TrialRow], baselines: Sequence[str]) -> go.Figure:
    """Each config in the order in which it was measured, the best so far, the baselines and what failed.

    :param rows: as ``searched`` gives them.
    :param baselines: names.
    """
    made = charts.figure()
    places = range(1, len(rows) + 1)
    tuned = [(place, row) for place, row in zip(places, rows, strict=True) if row.variant not in baselines]
    worked = [(place, row, row.median_us) for place, row in tuned if row.median_us is not None]
    colours = charts.colours({row.variant for _, row in tuned})
    for variant, colour in colours.items():
        mine = [(place, row, us) for place, row, us in worked if row.variant == variant]
        made.add_scatter(
            x=[place for place, _, _ in mine],
            y=[us for _, _, us in mine],
            customdata=[[hover(row.reason), hover(_params(row.params))] for _, row, _ in mine],
            mode="markers",
            name=hover(variant),
            marker={"color": colour, "size": 6, "opacity": 0.75},
            hovertemplate="%{y:.3f} µs, proposed by %{customdata[0]}<br>%{customdata[1]}"
            "<extra>%{fullData.name}</extra>",
        )
    if worked:
        least, steps = float("inf"), []
        for place, _, us in worked:
            least = min(least, us)
            steps.append((place, least))
        made.add_scatter(
            x=[place for place, _ in steps],
            y=[us for _, us in steps],
            mode="lines",
            name="best so far",
            line={"color": charts.COLOURS[2], "shape": "hv", "width": 2},
            hovertemplate="best so far %{y:.3f} µs<extra></extra>",
        )
    for number, row in enumerate(row for row in rows if row.variant in baselines and row.median_us is not None):
        made.add_scatter(
            x=[1, max(2, len(rows))],
            y=[row.median_us] * 2,
            mode="lines",
            name=f"{hover(row.variant)} (baseline)",
            line={
                "color": charts.BASELINE_COLOUR,
                "dash": charts.BASELINE_DASHES[number % len(charts.BASELINE_DASHES)],
            },
            hovertemplate="%{y:.3f} µs<extra>%{fullData.name}</extra>",
        )
    floor_us = charts.latency_axis(made, [row.median_us for row in rows if row.median_us is not None])
    failed = [(place, row) for place, row in tuned if row.status is not Status.OK]
    if failed:
        # Without a time they lie on the axis.
        made.add_scatter(
            x=[place for place, _ in failed],
            y=[floor_us] * len(failed),
            customdata=[[str(row.status)] for _, row in failed],
            mode="markers",
            name="failed",
            marker={"color": charts.LIMIT_COLOUR, "symbol": "x", "size": 8},
            hovertemplate="%{customdata[0]}<extra>failed</extra>",
        )
    made.update_xaxes(title="trial, in the order measured")
    return made


def study_of(rows: Sequence[TrialRow], variant: str) -> Study:
    """An Optuna study, in memory, of one variant's configs: those that worked, in microseconds.

    Of more than ``MOST_TRIALS`` it takes evenly many over the order of their times, the fastest among them. Parameters
    that never changed are left out: nothing can be said of them.
    """
    worked = sorted(
        (row for row in rows if row.variant == variant and row.median_us is not None),
        key=lambda row: row.median_us or 0.0,
    )
    kept = worked[:: -(-len(worked) // MOST_TRIALS)] if worked else []
    axes = _axes([row.params for row in kept])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        create_trial(
            state=TrialState.COMPLETE,
            value=row.median_us,
            params={name: row.params[name] for name in axes},
            distributions=axes,
        )
        for row in kept
    )
    return study


def parallel_figure(study: Study) -> go.Figure:
    """Every config as a line through its parameters' values, the fastest in front.

    Three traces: Optuna's own plot has one for each config, and Plotly's parallel coordinates need WebGL, which takes a
    machine without a GPU a second to start.
    """
    names = parameters_of(study)
    trials = sorted(study.get_trials(deepcopy=False), key=_time)
    known = {
        name: sorted({trial.params[name] for trial in trials}, key=lambda value: (isinstance(value, str), value))
        for name in names
    }
    made = charts.figure(460)
    begin = 0
    groups = []
    for label, share, colour, width in GROUPS:
        end = max(begin + 1, round(share * len(trials)))
        groups.append((label, trials[begin:end], colour, width))
        begin = end
    for label, mine, colour, width in reversed(groups):
        # One line for all of a group; None lifts the pen.
        made.add_scatter(
            x=[x for _ in mine for x in (*range(len(names)), None)],
            y=[y for trial in mine for y in (*(_height(known[name], trial.params[name]) for name in names), None)],
            mode="lines",
            name=f"{label} ({_span(mine)})" if mine else label,
            line={"color": colour, "width": width},
            hoverinfo="skip",
        )
    made.add_scatter(
        x=[place for place, name in enumerate(names) for _ in known[name]],
        y=[_height(known[name], value) for name in names for value in known[name]],
        text=[hover(value) for name in names for value in known[name]],
        mode="markers+text",
        textposition="middle right",
        marker={"color": charts.BASELINE_COLOUR, "size": 6},
        hoverinfo="text",
        showlegend=False,
    )
    made.update_xaxes(
        tickvals=list(range(len(names))),
        ticktext=[hover(shortened(name, 14)) for name in names],
        range=[-0.25, len(names) - 0.25],
        tickangle=-35,
    )
    made.update_yaxes(visible=False, range=[-0.06, 1.06])
    made.update_layout(legend={"traceorder": "reversed"}, margin={"l": 48})
    return made


def importances_figure(study: Study) -> go.Figure:
    """How much each parameter has to do with being fast: PED-ANOVA over the fastest tenth."""
    with warnings.catch_warnings():
        # That it is experimental, and that low values are the good ones.
        warnings.simplefilter("ignore")
        evaluator = PedAnovaImportanceEvaluator()
        made = optuna.visualization.plot_param_importances(study, evaluator=evaluator, target=_time, target_name="µs")
    made.update_traces(marker={"color": charts.COLOURS[0]}, cliponaxis=False)
    made.update_xaxes(title="importance for the time a launch")
    made.update_yaxes(title="")
    return _styled(made, 380)


def slice_figure(study: Study, parameter: str) -> go.Figure:
    """The times over one parameter."""
    made = optuna.visualization.plot_slice(study, params=[parameter], target=_time, target_name="µs a launch")
    # Its colours are the order of trials, which the history shows.
    made.update_traces(marker={"color": charts.COLOURS[0], "opacity": 0.6, "showscale": False, "line": {"width": 0}})
    made.update_layout(width=None)
    values = sorted({trial.params[parameter] for trial in study.get_trials(deepcopy=False)}, key=str)
    if len(values) <= MOST_TICKS:
        # Only these were tried: between two of them there is nothing to read.
        made.update_xaxes(tickvals=values, ticktext=[hover(value) for value in values])
    return _styled(made, 380)


def parameters_of(study: Study) -> list[str]:
    """The parameters that changed, by name."""
    return sorted({name for trial in study.get_trials(deepcopy=False) for name in trial.params})


def ties_figure(ties: Sequence[Tie]) -> go.Figure:
    """By how much each config of the tie set is slower than the best, with the 95 % interval of that."""
    shown = list(ties[:MOST_TIES])
    labels = [f"{place}. {tie.candidate.variant}" for place, tie in enumerate(shown, 1)]
    percent = [[100 * (each - 1) for each in (t.over_best.low, t.over_best.ratio, t.over_best.high)] for t in shown]
    made = charts.figure(150 + 26 * len(shown))
    made.add_scatter(
        x=[middle for _, middle, _ in percent],
        y=labels,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - middle for _, middle, high in percent],
            "arrayminus": [middle - low for low, middle, _ in percent],
        },
        customdata=[[hover(_params(tie.candidate.params)), tie.candidate.median_us] for tie in shown],
        mode="markers",
        marker={"color": charts.COLOURS[0], "size": 8},
        showlegend=False,
        hovertemplate="%{x:+.2f} % (%{customdata[1]:.3f} µs)<br>%{customdata[0]}<extra></extra>",
    )
    made.add_vline(x=0, line={"color": charts.BASELINE_COLOUR, "width": 1})
    made.update_xaxes(title="slower than the best, %, with its 95 % interval")
    made.update_yaxes(autorange="reversed", automargin=True)
    return made


def _height(known: Sequence[Any], value: Any) -> float:
    """Where a value lies on its axis: evenly apart, in their order."""
    return known.index(value) / max(1, len(known) - 1)


def _span(trials: Sequence[Any]) -> str:
    return f"{_time(trials[0]):.2f} to {_time(trials[-1]):.2f} µs"


def _time(trial: Any) -> float:
    return float(trial.value)


def _styled(made: go.Figure, height: int) -> go.Figure:
    """Optuna's figure in the page's own colours and size."""
    made.update_layout(title=None, template=None, height=height, margin={"l": 8, "r": 24, "t": 24, "b": 8})
    return made


def _axes(params: Sequence[Mapping[str, Any]]) -> dict[str, BaseDistribution]:
    names = set.intersection(*(set(each) for each in params)) if params else set()
    found: dict[str, BaseDistribution] = {}
    for name in sorted(names):
        values = {each[name] for each in params}
        if len(values) < 2:
            continue
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            low, high = min(values), max(values)
            found[name] = IntDistribution(low, high, log=low > 0 and high >= LOGARITHMIC * low)
        else:
            found[name] = CategoricalDistribution(sorted(values, key=str))
    return found


def _params(params: Mapping[str, Any]) -> str:
    return shortened(" ".join(f"{name}={value}" for name, value in sorted(params.items()) if value is not False), 110)
