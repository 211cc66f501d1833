"""What charts share: colours that are legible in light and dark, axes with units, and how they fit a phone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import streamlit as st

BASELINE_COLOUR = "#8b93a1"
COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#06b6d4", "#ec4899", "#84cc16")
"""Of variants, in their order."""
LIMIT_COLOUR = "#ef4444"
BASELINE_DASHES = ("dash", "dashdot", "longdash")
PREDICTED_DASH = "dot"
"""Of whatever was not measured; nothing that was measured is drawn so."""
HEIGHT = 420
LOGARITHMIC = 8
"""Latencies further apart than this factor need a logarithmic axis."""
LEAST_TIME = timedelta(hours=6)
"""On both sides of what an axis of times shows."""
TIME_AXIS_PIXELS = 76
LEGEND_PIXELS = 21
"""Of each entry."""
MOST_POINTS = 5000
"""Of one trace: more than a screen can show."""


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, the same whatever else is shown for the same names."""
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(sorted(names))}


def faint(colour: str, opacity: float) -> str:
    """The colour, seen through."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def figure(height: int = HEIGHT) -> go.Figure:
    """An empty chart: the legend below, so that a phone leaves the width to the data."""
    made = go.Figure()
    made.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 24, "b": 8},
        legend={"orientation": "h", "yanchor": "top", "y": -0.22, "x": 0},
        hovermode="closest",
    )
    return made


def latency_axis(made: go.Figure, times_us: Iterable[float], top_us: float | None = None) -> float:
    """An axis of latencies, logarithmic where they are far apart.

    :param top_us: the largest that a linear axis has to show; None: of the times.
    :returns: where the axis begins, in µs.
    """
    finite = [us for us in times_us if math.isfinite(us) and us > 0]
    if finite and max(finite) > LOGARITHMIC * min(finite):
        low, high = min(finite) / 1.3, max(finite) * 1.3
        ticks = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]
        shown = [tick for tick in ticks if low <= tick <= high]
        made.update_yaxes(
            type="log",
            title="µs a launch, logarithmic",
            tickvals=shown,
            ticktext=[f"{tick:g}" for tick in shown],
            range=[math.log10(low), math.log10(high)],
        )
        return low
    made.update_yaxes(title="µs a launch", rangemode="tozero")
    if top_us:
        made.update_yaxes(range=[0, 1.05 * top_us])
    return 0.0


def tokens_axis(made: go.Figure, tokens: Iterable[int]) -> None:
    """A logarithmic axis of tokens, with a tick where something was measured, as far as there is room."""
    places = sorted(set(tokens))
    ticks: list[int] = []
    for place in places:
        if not ticks or place >= 1.45 * ticks[-1]:
            ticks.append(place)
    made.update_xaxes(
        type="log", title="tokens in a decode step", tickvals=ticks, ticktext=[str(tick) for tick in ticks]
    )


def time_axis(made: go.Figure, times: Sequence[datetime], entries: int, height: int) -> None:
    """An axis of days and minutes, and below it a legend of one entry a line, however low the chart is.

    :param times: UTC.
    :param height: pixels of the chart without its axis and legend.
    """
    pad = max(LEAST_TIME, (max(times) - min(times)) / 20)
    made.update_xaxes(
        title="when, UTC",
        tickformat="%Y-%m-%d<br>%H:%M",
        # As many as a phone has room for side by side.
        nticks=4,
        tickangle=0,
        range=[min(times) - pad, max(times) + pad],
    )
    below = TIME_AXIS_PIXELS + LEGEND_PIXELS * entries
    made.update_layout(
        height=height + below,
        margin={"b": below},
        showlegend=True,
        legend={"orientation": "v", "yref": "container", "y": 0, "yanchor": "bottom"},
    )


def show(made: go.Figure, key: str, **options: Any) -> Any:
    """The chart, in the colours of the page.

    :param key: unique on the page.
    :param options: of ``st.plotly_chart``, e.g. ``on_select``, whose state is returned.
    """
    config = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
    return st.plotly_chart(made, key=key, config=config, **options)
