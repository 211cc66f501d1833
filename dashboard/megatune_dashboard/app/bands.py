"""A picture of two plans' bands above each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go

from megatune_dashboard.app import charts
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import shortened
from megatune_planner.plan import ShapePlan
from megatune_planner.rendering import decision_text
from megatune_planner.rendering import tokens_text

ROWS_PIXELS = 76
AXIS_PIXELS = 52
MOST_LETTERS = 44
"""Of a config in the legend, which a phone still shows."""
STOCK = "stock"
ON_COLOUR = "#111827"
"""Of text in a bar: legible on all the colours, in light and in dark."""


@dataclass(frozen=True)
class _Bar:
    row: str
    start: float
    end: float
    decision: str
    tokens: str
    text: str


def bands_figure(upper: tuple[str, ShapePlan | None], lower: tuple[str, ShapePlan | None]) -> go.Figure:
    """Both over tokens, each band in the colour of its decision; one without end goes to the edge.

    :param upper: what the row is called, and the shape; None: stock serves all of it.
    :param lower: the same of the row below.
    """
    edge = 2.0 * max(band.tokens_lo for _, shape in (upper, lower) if shape is not None for band in shape.bands)
    bars = [bar for name, shape in (lower, upper) for bar in _bars(name, shape, edge)]
    in_order = sorted(bars, key=lambda bar: bar.start)
    used = [name for name in dict.fromkeys(bar.decision for bar in in_order) if name != STOCK]
    colours = {name: charts.COLOURS[place % len(charts.COLOURS)] for place, name in enumerate(used)}
    legend = charts.LEGEND_PIXELS * (len(used) + 1) + 8
    made = charts.figure(ROWS_PIXELS + AXIS_PIXELS + legend)
    for name in [*used, STOCK]:
        mine = [bar for bar in bars if bar.decision == name]
        made.add_bar(
            y=[bar.row for bar in mine],
            base=[bar.start for bar in mine],
            x=[bar.end - bar.start for bar in mine],
            orientation="h",
            name=hover(shortened(name, MOST_LETTERS)),
            marker={
                "color": colours.get(name, charts.BASELINE_COLOUR),
                "line": {"width": 1, "color": "rgba(127,127,127,0.6)"},
            },
            customdata=[[bar.tokens, hover(bar.text)] for bar in mine],
            hovertemplate="%{y}: %{customdata[0]} tokens<br>%{customdata[1]}<extra></extra>",
            text=[name.split()[0] for _ in mine],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ON_COLOUR},
            textangle=0,
            showlegend=bool(mine),
        )
    made.update_layout(
        barmode="overlay",
        bargap=0.25,
        margin={"t": 4, "b": AXIS_PIXELS + legend},
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom"},
    )
    charts.tokens_axis(made, {int(bar.start) for bar in bars})
    made.update_xaxes(range=[0, math.log10(edge)])
    made.update_yaxes(categoryorder="array", categoryarray=[lower[0], upper[0]], automargin=True)
    return made


def _bars(row: str, shape: ShapePlan | None, edge: float) -> list[_Bar]:
    if shape is None:
        return [_Bar(row, 1.0, edge, STOCK, "1+", STOCK)]
    return [
        _Bar(
            row,
            float(band.tokens_lo),
            edge if band.tokens_hi is None else band.tokens_hi + 1.0,
            STOCK if band.decision.kind == "stock" else decision_text(band.decision),
            tokens_text(band),
            f"{decision_text(band.decision)}: {band.reason}",
        )
        for band in shape.bands
    ]
