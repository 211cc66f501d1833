"""The predicted decode step of a plan, against stock and the plan that it is compared with: a part of Plan review."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from megatune_dashboard.app import charts
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import plain
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.step_review import Deployment
from megatune_planner.step_review import ExpectedStep
from megatune_planner.step_review import StepTimes
from megatune_planner.step_review import deployments
from megatune_planner.step_review import expected
from megatune_planner.step_review import predicted_steps

KEPT = 16
"""Plans whose answers are kept."""
MILLI = 1e3
"""Microseconds from which on a time is said in milliseconds."""


def predicted_step(plan: Plan, before: Plan | None) -> bool:
    """Show it; False where the plan has no shape of a model that is known.

    :param before: the plan that is compared with; None: stock alone.
    """
    choices = _deployments(_Kept(plan))
    if not choices:
        return False
    deployment = choices[0]
    if len(choices) > 1:
        names = {each.name: each for each in choices}
        wanted = st.query_params.get("deployment", "")
        chosen = st.selectbox(
            "Predicted step of",
            list(names),
            index=list(names).index(wanted) if wanted in names else 0,
            help="The models and ranks that have shapes of this plan; the one with the most comes first.",
        )
        st.query_params["deployment"] = chosen
        deployment = names[chosen]
    steps = _steps(_Kept(plan), None if before is None else _Kept(before), deployment)
    mean = expected(steps, plan.content.options.traffic)
    if mean is None:
        return False
    what = "Known parts of a step" if any(each.missing for each in steps) else "Predicted step"
    _metrics(what, mean, before is not None, weighed=bool(plan.content.options.traffic))
    charts.show(saved_figure(steps, before is not None), "step")
    st.caption(_what_it_is(deployment, steps))
    folded_table(
        "Parts of the step", "step-parts", lambda: part_rows(steps, before is not None), empty="", columns=COLUMNS
    )
    return True


def _what_it_is(deployment: Deployment, steps: Sequence[StepTimes]) -> str:
    kinds = list(dict.fromkeys(name for each in steps for name in (*(part.name for part in each.parts), *each.missing)))
    never = [name for name in kinds if all(name in each.missing for each in steps)]
    sometimes = [name for name in kinds if name not in never and any(name in each.missing for each in steps)]
    said = [
        f"Predicted for a decode step of {plain(deployment.name)}: {len(kinds) - len(never)} of {len(kinds)} kinds of "
        "launches, each as often as a step has it, with the 95 % intervals of what the plans measured added up. "
        "Nobody has measured the whole step."
    ]
    if never:
        said.append(f"Without a figure, and left out on every side: {', '.join(map(plain, never))}.")
    if sometimes:
        said.append(f"With figures at some of the tokens only: {', '.join(map(plain, sometimes))}.")
    return " ".join(said)


COLUMNS: dict[str, Any] = {
    name: st.column_config.NumberColumn(name, format="%.1f")
    for name in ("stock µs", "now µs", "this plan µs", "saves of stock µs")
}


def _metrics(what: str, mean: ExpectedStep, compared: bool, *, weighed: bool) -> None:
    over = "weighed by the plan's traffic" if weighed else "all tokens weighed alike"
    of, saved = (mean.before_us, mean.saved_us) if compared else (mean.stock_us, mean.saved_of_stock_us)
    with st.container(horizontal=True, gap="medium"):
        st.metric(
            f"{what}, stock",
            spelled(mean.stock_us),
            help=f"Predicted: mean over the measured tokens, {over}.",
            width="content",
        )
        if compared:
            now = "With the plan that is compared with, and stock where it says nothing."
            st.metric("Now", spelled(mean.before_us), help=now, width="content")
        st.metric("This plan", spelled(mean.after_us), _delta(of, saved), delta_color="inverse", width="content")
        st.metric(
            "Saves a step",
            spelled(saved),
            help=f"Of stock's step: {spelled(mean.saved_of_stock_us)}. What all sides have in common cancels.",
            width="content",
        )


def _delta(of: Bounds, saved: Bounds) -> str:
    """The change in percent: the middle of the interval."""
    return f"{-(saved.low + saved.high) / (of.low + of.high):+.1%}"


def spelled(us: Bounds) -> str:
    """An interval of a time in words, to three digits, e.g. ``1.20 to 1.31 ms``."""
    unit, factor = ("ms", MILLI) if max(abs(us.low), abs(us.high)) >= MILLI else ("µs", 1.0)
    low, high = (_digits(end / factor) for end in (us.low, us.high))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") if abs(value) < MILLI else f"{value:.0f}"


def saved_figure(steps: Sequence[StepTimes], compared: bool) -> go.Figure:
    """What the plan saves of a step over tokens, drawn as what is predicted; the whole steps are in the hover.

    The steps themselves would be one line: what all sides have in common is most of them.
    """
    made = charts.figure(340)
    sides = [("against stock", charts.BASELINE_COLOUR, [(each.stock_us, each.saved_of_stock_us) for each in steps])]
    if compared:
        sides.append(("against now", charts.COLOURS[0], [(each.before_us, each.saved_us) for each in steps]))
    for name, colour, pairs in sides:
        made.add_scatter(
            x=[each.tokens for each in steps],
            y=[_middle(saved) for _, saved in pairs],
            error_y={
                "type": "data",
                "array": [(saved.high - saved.low) / 2 for _, saved in pairs],
                "thickness": 1.2,
                "width": 3,
            },
            customdata=[
                [spelled(saved), spelled(of), spelled(each.after_us)]
                for each, (of, saved) in zip(steps, pairs, strict=True)
            ],
            mode="lines+markers",
            name=hover(name),
            line={"color": colour, "dash": charts.PREDICTED_DASH},
            hovertemplate="%{x} tokens: saves %{customdata[0]}<br>known parts: %{customdata[1]} to begin with, "
            "%{customdata[2]} with this plan<extra>%{fullData.name}</extra>",
        )
    made.add_hline(y=0, line={"color": charts.BASELINE_COLOUR, "width": 1})
    charts.tokens_axis(made, [each.tokens for each in steps])
    made.update_yaxes(title="saved of a step, µs", rangemode="tozero")
    made.update_layout(showlegend=True)
    return made


def part_rows(steps: Sequence[StepTimes], compared: bool) -> list[dict[str, Any]]:
    """One row for each part at each number of tokens: the middle of its interval."""
    return [
        {
            "tokens": each.tokens,
            "part": part.name,
            "launches": part.launches,
            "stock µs": _middle(part.stock_us),
            **({"now µs": _middle(part.before_us)} if compared else {}),
            "this plan µs": _middle(part.after_us),
            "saves of stock µs": _middle(part.stock_us) - _middle(part.after_us),
            "provenance": part.provenance,
            "how": part.how,
        }
        for each in steps
        for part in each.parts
    ]


def _middle(us: Bounds) -> float:
    return (us.low + us.high) / 2


class _Kept:
    """A plan as a key: its digest stands for it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and other.plan.digest == self.plan.digest

    def __hash__(self) -> int:
        return hash(self.plan.digest)


@lru_cache(maxsize=KEPT)
def _deployments(kept: _Kept) -> list[Deployment]:
    return deployments(kept.plan)


@lru_cache(maxsize=KEPT)
def _steps(kept: _Kept, before: _Kept | None, deployment: Deployment) -> tuple[StepTimes, ...]:
    return predicted_steps(kept.plan, None if before is None else before.plan, deployment)
