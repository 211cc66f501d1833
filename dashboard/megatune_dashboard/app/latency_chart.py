"""Charts of one shape: latency over tokens, achieved bandwidth, one parameter, and the samples of one measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from megatune_dashboard.app import charts
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import shortened
from megatune_db.queries import ParameterPoint
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import Curve
from megatune_planner.crossover_schema import Crossover
from megatune_planner.depths import DepthCurve
from megatune_planner.latency_model import Prediction
from megatune_planner.rendering import decision_text
from megatune_planner.shape_view import ShapeView

INK = "#8b93a1"
FLOOR_NAME = "least possible (rated speed)"
HEIGHT = 480
LEGEND_LINES = 6
LEGEND_LINE = 18
"""Entries of a legend that the height allows for, and pixels of each further one: a phone has one a line."""
NARROWEST = 0.14
"""Share of the axis that neighbouring bands of one name must span for it to fit, on a phone too."""
PREDICTED = "predicted"

Predicted = Mapping[str, Sequence[tuple[int, Prediction]]]
"""By variant, tokens and what the model says."""
Found = Mapping[str, Sequence[tuple[int, float]]]
"""By name, tokens and microseconds: what a campaign found by itself."""


def latency_figure(view: ShapeView, predicted: Predicted, top_us: float | None = None) -> go.Figure:
    """Curves with intervals over shaded bands, with crossovers, baselines, the floor and predictions.

    Each measured point carries the id of its measurement as ``customdata[0]``.

    :param top_us: end of the axis, where two charts are to be compared; None: what fits.
    """
    made = charts.figure()
    curves = view.plan.curves if view.plan is not None else ()
    variants = [curve for curve in curves if curve.kind == "variant"]
    colours = variant_colours(view)
    tokens = [count for count, _ in view.row.workloads]
    if view.plan is not None:
        _shade(made, view.plan.bands, colours, *_ends(tokens))
        for crossover in view.plan.crossovers:
            if {crossover.below, crossover.above} <= set(colours):
                _crossover(made, crossover)
    for name, points in predicted.items():
        # Of baselines the measured curve is enough: a phone has no room for theirs.
        if name in colours:
            _prediction(made, name, points, colours[name])
    baselines = [curve for curve in curves if curve.kind == "baseline"]
    for number, curve in enumerate(baselines):
        dash = charts.BASELINE_DASHES[number % len(charts.BASELINE_DASHES)]
        _curve(made, view, curve, f"{curve.name} (baseline)", charts.BASELINE_COLOUR, dash)
    for curve in variants:
        _curve(made, view, curve, curve.name, colours[curve.name], "solid")
    if view.plan is None:
        _candidates(made, view, colours)
    _floor(made, view)
    if view.plan is not None:
        _chosen(made, view.plan.bands)
    times = [point.latency.median_us for curve in (*variants, *baselines) for point in curve.points]
    charts.latency_axis(made, times, top_us)
    charts.tokens_axis(made, tokens)
    made.update_xaxes(range=[math.log10(each) for each in _ends(tokens)])
    made.update_layout(height=HEIGHT + LEGEND_LINE * max(0, len(made.data) - LEGEND_LINES))
    return made


def campaign_figure(found: Found, top_us: float | None = None) -> go.Figure:
    """What one campaign found of a shape by itself: its best and its fastest baseline."""
    made = charts.figure(HEIGHT)
    for name, points in found.items():
        baseline = name == "baseline"
        made.add_scatter(
            x=[tokens for tokens, _ in points],
            y=[us for _, us in points],
            mode="lines+markers",
            name=name,
            line={
                "color": charts.BASELINE_COLOUR if baseline else charts.COLOURS[0],
                "dash": charts.BASELINE_DASHES[0] if baseline else "solid",
            },
            hovertemplate="%{x} tokens<br>%{y:.3f} µs<extra>%{fullData.name}</extra>",
        )
    tokens = [place for points in found.values() for place, _ in points]
    charts.latency_axis(made, [us for points in found.values() for _, us in points], top_us)
    charts.tokens_axis(made, tokens)
    return made


def share_figure(view: ShapeView) -> go.Figure | None:
    """Achieved bandwidth over tokens as a share of the rated one; None where nothing is known of that."""
    if not view.floors or view.plan is None:
        return None
    made = charts.figure(340)
    colours = variant_colours(view)
    for curve in view.plan.curves:
        if curve.kind == "exporter":
            continue
        shares = [(p.tokens, view.share(curve.name, p.tokens, p.latency.median_us), p) for p in curve.points]
        known = [(place, 100 * share, point) for place, share, point in shares if share is not None]
        made.add_scatter(
            x=[place for place, _, _ in known],
            y=[share for _, share, _ in known],
            customdata=[
                [point.evidence, view.floors[curve.name][place].bound, point.latency.median_us]
                for place, _, point in known
            ],
            mode="lines+markers",
            name=hover(curve.name),
            line={
                "color": colours.get(curve.name, charts.BASELINE_COLOUR),
                "dash": "solid" if curve.kind == "variant" else charts.BASELINE_DASHES[0],
            },
            hovertemplate="%{x} tokens<br>%{y:.1f} % of the rated speed (%{customdata[1]})<br>"
            "%{customdata[2]:.3f} µs<extra>%{fullData.name}</extra>",
        )
    charts.tokens_axis(made, [count for count, _ in view.row.workloads])
    made.update_yaxes(title="share of the limit, %", rangemode="tozero")
    made.add_hline(y=100, line={"color": charts.LIMIT_COLOUR, "width": 1})
    return made


def parameter_figure(points: Sequence[ParameterPoint], parameter: str) -> go.Figure:
    """Latency over one parameter, a line for each number of tokens: the fastest config with each value."""
    made = charts.figure(400)
    by_tokens: dict[int, list[ParameterPoint]] = {}
    for point in points:
        by_tokens.setdefault(point.tokens, []).append(point)
    values = sorted({point.value for point in points}, key=lambda value: (isinstance(value, str), value))
    for place, (tokens, mine) in enumerate(sorted(by_tokens.items())):
        made.add_scatter(
            x=[str(point.value) for point in mine],
            y=[point.median_us for point in mine],
            error_y=_intervals([(p.low_us, p.median_us, p.high_us) for p in mine]),
            customdata=[[point.measurement_id] for point in mine],
            mode="lines+markers",
            name=tokens_words(tokens),
            line={"color": charts.COLOURS[place % len(charts.COLOURS)]},
            hovertemplate=f"{hover(parameter)} %{{x}}<br>%{{y:.3f}} µs<extra>%{{fullData.name}}</extra>",
        )
    made.update_xaxes(
        type="category",
        title=hover(parameter),
        categoryorder="array",
        categoryarray=[str(value) for value in values],
    )
    charts.latency_axis(made, [point.median_us for point in points])
    return made


def depths_figure(curves: Sequence[DepthCurve]) -> go.Figure:
    """Latency of a chain over the depth of its prefetch, a line for each number of tokens; stars are the best depths,
    and open circles those that tie with them."""
    made = charts.figure(HEIGHT)
    for place, curve in enumerate(curves):
        colour = charts.COLOURS[place % len(charts.COLOURS)]
        points = [(point.depth_mib, point.candidate) for point in curve.points]
        made.add_scatter(
            x=[depth for depth, _ in points],
            y=[each.median_us for _, each in points],
            error_y=_intervals([(each.low_us, each.median_us, each.high_us) for _, each in points]),
            customdata=[[each.measurement_id, hover(_params(each.params))] for _, each in points],
            mode="lines+markers",
            name=tokens_words(curve.workload.tokens),
            line={"color": colour},
            marker={
                "size": [14 if depth == curve.best_mib else 9 for depth, _ in points],
                "symbol": [
                    "star" if depth == curve.best_mib else "circle-open" if depth in curve.ties_mib else "circle"
                    for depth, _ in points
                ],
            },
            hovertemplate="%{x} MiB<br>%{y:.3f} µs<br>%{customdata[1]}<extra>%{fullData.name}</extra>",
        )
    depths = sorted({point.depth_mib for curve in curves for point in curve.points})
    made.update_xaxes(title="depth of the prefetch, MiB; 0: none", tickvals=depths)
    charts.latency_axis(made, [point.candidate.median_us for curve in curves for point in curve.points])
    # Depths differ by less than the whole: from 0 they would be one line.
    made.update_yaxes(rangemode="normal")
    return made


def samples_figure(samples: NDArray[np.float32], throttled: Sequence[bool]) -> go.Figure:
    """Samples in the order in which they were taken, throttled ones marked; at most as many as can be told apart.

    :param samples: microseconds, shape (samples,), all finite.
    """
    step = max(1, -(-len(samples) // charts.MOST_POINTS))
    order = np.arange(0, len(samples), step)
    flags = np.array(throttled, bool) if len(throttled) == len(samples) else np.zeros(len(samples), bool)
    made = charts.figure(300)
    for name, colour, mask in (
        ("sample", charts.COLOURS[0], ~flags[order]),
        ("throttled", charts.COLOURS[1], flags[order]),
    ):
        if mask.any():
            made.add_scatter(
                x=order[mask] + 1,
                y=samples[order][mask],
                mode="markers",
                name=name,
                marker={"color": colour, "size": 5},
                hovertemplate="sample %{x}<br>%{y:.4f} µs<extra></extra>",
            )
    made.update_xaxes(title="sample, in the order taken")
    made.update_yaxes(title="µs a launch")
    return made


def variant_colours(view: ShapeView) -> dict[str, str]:
    """The same for a shape on every target: of all variants that any candidate has."""
    return charts.colours({candidate.variant for mine in view.candidates.values() for candidate in mine})


def largest_us(view: ShapeView) -> float:
    """The slowest that the chart of a shape shows."""
    curves = view.plan.curves if view.plan is not None else ()
    times = [point.latency.high_us for curve in curves if curve.kind != "exporter" for point in curve.points]
    return max(times, default=0.0)


def tokens_words(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"


def _ends(tokens: Sequence[int]) -> tuple[float, float]:
    return min(tokens) / 1.15, max(tokens) * 1.25


def _shade(made: go.Figure, bands: Sequence[Band], colours: Mapping[str, str], left: float, right: float) -> None:
    """Each band behind the curves, in the colour of what serves; neighbours of one name have it once."""
    for name, run in groupby(bands, key=lambda b: b.decision.variant if b.decision.kind == "config" else "stock"):
        colour = colours.get(name, charts.BASELINE_COLOUR)
        strips = []
        for band in run:
            start = max(left, (band.tokens_lo * (band.tokens_lo - 1)) ** 0.5 or left)
            end = right if band.tokens_hi is None else min(right, (band.tokens_hi * (band.tokens_hi + 1)) ** 0.5)
            if start < end:
                strips.append((start, end))
                made.add_vrect(
                    x0=start,
                    x1=end,
                    fillcolor=charts.faint(colour, 0.08 if name == "stock" else 0.14),
                    line_width=0,
                    layer="below",
                )
        if strips and math.log(strips[-1][1] / strips[0][0]) > NARROWEST * math.log(right / left):
            made.add_annotation(
                x=math.log10((strips[0][0] * strips[-1][1]) ** 0.5),
                y=0.01,
                yref="paper",
                yanchor="bottom",
                text=hover(name),
                showarrow=False,
            )


def _crossover(made: go.Figure, crossover: Crossover) -> None:
    """Its interval as a strip between two lines, the estimate as a line; nothing where the two never change sides."""
    if crossover.kind == "never":
        return
    start, end = crossover.tokens_lo, crossover.tokens_hi
    edge = {"color": INK, "width": 1}
    made.add_vrect(x0=start, x1=end, fillcolor=charts.faint(INK, 0.18), line=edge, layer="below")
    text = f"{crossover.below} | {crossover.above}<br>{start} to {end}"
    if crossover.estimate_tokens is not None:
        made.add_vline(x=crossover.estimate_tokens, line={**edge, "dash": "dash", "width": 1.5})
        text = f"{crossover.below} | {crossover.above}<br>near {crossover.estimate_tokens:g} ({start} to {end})"
    made.add_annotation(
        x=math.log10((start * end) ** 0.5),
        y=1.0,
        yref="paper",
        yanchor="top",
        text=text
        + ("<br>suspect" if crossover.suspect else "")
        + ("<br>contested" if crossover.kind == "contested" else ""),
        showarrow=False,
        font={"size": 11},
    )


def _curve(made: go.Figure, view: ShapeView, curve: Curve, name: str, colour: str, dash: str) -> None:
    points = curve.points
    made.add_scatter(
        x=[point.tokens for point in points],
        y=[point.latency.median_us for point in points],
        error_y=_intervals([(p.latency.low_us, p.latency.median_us, p.latency.high_us) for p in points]),
        customdata=[
            [point.evidence, hover(_params(point.params)), str(point.stage), str(point.provenance)] for point in points
        ],
        mode="lines+markers",
        name=hover(name),
        line={"color": colour, "dash": dash},
        marker={"size": 7},
        hovertemplate="%{x} tokens<br>%{y:.3f} µs<br>%{customdata[1]}<br>%{customdata[3]}, stage %{customdata[2]}"
        "<extra>%{fullData.name}</extra>",
    )


def _candidates(made: go.Figure, view: ShapeView, colours: Mapping[str, str]) -> None:
    """Each variant's fastest where there is no baseline, so that nothing is decided."""
    for variant, colour in colours.items():
        fastest = [next((each for each in mine if each.variant == variant), None) for mine in view.candidates.values()]
        known = [(tokens, each) for tokens, each in zip(view.candidates, fastest, strict=True) if each is not None]
        made.add_scatter(
            x=[tokens for tokens, _ in known],
            y=[each.median_us for _, each in known],
            error_y=_intervals([(each.low_us, each.median_us, each.high_us) for _, each in known]),
            customdata=[[each.measurement_id] for _, each in known],
            mode="lines+markers",
            name=hover(variant),
            line={"color": colour},
            hovertemplate="%{x} tokens<br>%{y:.3f} µs<extra>%{fullData.name}</extra>",
        )


def _prediction(made: go.Figure, name: str, points: Sequence[tuple[int, Prediction]], colour: str) -> None:
    tokens = [place for place, _ in points]
    made.add_scatter(
        x=[*tokens, *reversed(tokens)],
        y=[*(said.high_us for _, said in points), *(said.low_us for _, said in reversed(points))],
        fill="toself",
        fillcolor=charts.faint(colour, 0.12),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        mode="lines",
    )
    made.add_scatter(
        x=tokens,
        y=[said.median_us for _, said in points],
        mode="lines",
        name=f"{hover(name)}, {PREDICTED}",
        line={"color": colour, "dash": charts.PREDICTED_DASH, "width": 2},
        hovertemplate="%{x} tokens<br>%{y:.3f} µs, predicted<extra>%{fullData.name}</extra>",
    )


def _floor(made: go.Figure, view: ShapeView) -> None:
    least = [(tokens, view.floor(tokens)) for tokens, _ in view.row.workloads]
    known = [(tokens, each) for tokens, each in least if each is not None]
    if known:
        made.add_scatter(
            x=[tokens for tokens, _ in known],
            y=[each.us for _, each in known],
            customdata=[[each.bound] for _, each in known],
            mode="lines",
            name=FLOOR_NAME,
            line={"color": charts.LIMIT_COLOUR, "width": 1.5},
            hovertemplate="%{x} tokens<br>%{y:.3f} µs at the rated speed (%{customdata[0]})<extra></extra>",
        )


def _chosen(made: go.Figure, bands: Sequence[Band]) -> None:
    points = [(point, decision_text(band.decision)) for band in bands for point in band.points]
    made.add_scatter(
        x=[point.tokens for point, _ in points],
        y=[point.latency.median_us for point, _ in points],
        customdata=[[point.evidence[0], hover(shortened(text, 90))] for point, text in points],
        mode="markers",
        name="what planning chooses",
        marker={"symbol": "circle-open", "size": 13, "color": INK, "line": {"width": 2}},
        hovertemplate="%{x} tokens<br>%{y:.3f} µs<br>%{customdata[1]}<extra>%{fullData.name}</extra>",
    )


def _intervals(points: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - median for _, median, high in points],
        "arrayminus": [median - low for low, median, _ in points],
        "thickness": 1.2,
        "width": 3,
    }


def _params(params: Mapping[str, Any]) -> str:
    return shortened(" ".join(f"{name}={value}" for name, value in sorted(params.items()) if value is not False), 90)
