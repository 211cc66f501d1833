"""Explore: everything that was measured of one operator at one shape, and how it compares with another target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from megatune_dashboard.app import charts
from megatune_dashboard.app import latency_chart
from megatune_dashboard.app.context import Context
from megatune_dashboard.app.outcomes import baseline_names
from megatune_dashboard.app.outcomes import target_name
from megatune_dashboard.app.sample_view import samples_of
from megatune_dashboard.app.tables import folded_table
from megatune_dashboard.app.tables import table
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.text import shortened
from megatune_dashboard.app.welcome import welcome
from megatune_db import queries
from megatune_db.queries import ShapeRow
from megatune_db.queries import WorkloadName
from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_planner.depths import OPERATOR as DEPTHS_OPERATOR
from megatune_planner.depths import depth_curves
from megatune_planner.depths import depth_text
from megatune_planner.depths import off_text
from megatune_planner.limits import SOURCE
from megatune_planner.rendering import crossover_text
from megatune_planner.routings import at_routing
from megatune_planner.shape_view import ShapeView
from megatune_planner.shape_view import predicted_curves
from megatune_planner.shape_view import shape_view

TITLE = "Explore"
ICON = ":material/show_chart:"
PATH = "explore"

TRUST = tuple(Provenance)
"""The order in which provenances are offered."""
NOTHING = "nothing"
CAMPAIGN = "campaign "
SHOWN_LETTERS = 20
"""Of a shape in its box, on a screen that is not wide."""
COLUMN_LETTERS = 36
"""Names of shapes that are longer get a row of their own."""


@dataclass(frozen=True)
class Side:
    """One of the things that are shown beside one another."""

    label: str
    row: ShapeRow | None
    campaign: str | None = None
    """Name; then there is no row."""


def page(context: Context) -> None:
    rows = context.read(queries.measured_shapes)
    if not rows:
        if not context.read(queries.campaign_names):
            welcome(context)
            return
        st.title("Explore")
        st.info("No measurement has worked yet: this page fills as soon as one does.")
        return
    st.title("Explore")
    shape, left, right = _filters(context, rows)
    if left.row is None:
        return
    whole_name(shape)
    others = tuple(rows)
    wants_predictions = left.row.world > 1 and st.toggle(
        "Show what the latency model predicts between measured tokens", key="predicted", bind="query-params"
    )
    sides = [side for side in (left, right) if side is not None]
    views = {side.label: view_of(context, side.row) for side in sides if side.row is not None}
    top = max((latency_chart.largest_us(view) for view in views.values()), default=0.0) if len(sides) > 1 else None
    for place, (column, side) in enumerate(zip(st.columns(len(sides)), sides, strict=True)):
        with column:
            _side(context, side, place, views.get(side.label), others if wants_predictions else (), top, shape)
    view = views[left.label]
    if right is not None:
        _differences(view, views.get(right.label), _found(context, right, left.row))
    # Apart, so that what is chosen below leaves the charts above as they are.
    st.fragment(_under)(context, view)


def view_of(context: Context, row: ShapeRow) -> ShapeView:
    """Everything that is known of the shape, kept until something more is measured of it."""
    return context.read_at(context.read(queries.shapes_version, (row,)), shape_view, row)


def _filters(context: Context, rows: Sequence[ShapeRow]) -> tuple[str, Side, Side | None]:
    """What is looked at: the shape's label, one side, and another where one is asked for."""
    columns, below = st.columns(4), st.container()
    operators = sorted({row.operator for row in rows})
    with columns[0]:
        operator = st.selectbox("Operator", operators, key="operator", bind="query-params", format_func=shortened)
    shapes: dict[str, list[ShapeRow]] = {}
    for row in rows:
        if row.operator == operator:
            shapes.setdefault(shape_label(row), []).append(row)
    shape, (first, second, *_) = shape_box(list(shapes), columns[1:], below)
    mine = _sides(context, shapes[shape])
    with first:
        left = st.selectbox("Measured on", list(mine), key="on", bind="query-params", format_func=shortened)
    beside = {label: side for label, side in mine.items() if label != left}
    for name in context.read(queries.campaign_names):
        label = f"{CAMPAIGN}{name}"
        beside[label] = Side(label, None, name)
    with second:
        right = st.selectbox("Beside it", [NOTHING, *beside], key="beside", bind="query-params", format_func=shortened)
    return shape, mine[left], beside.get(right)


def _sides(context: Context, rows: Sequence[ShapeRow]) -> dict[str, Side]:
    targets = {each.digest: each for each in context.read(queries.targets, counted=False)}
    ordered = sorted(rows, key=lambda row: (TRUST.index(row.provenance), str(row.regime)))
    names = {row.target: target_name(targets.get(row.target)) for row in ordered}
    twice = {name for name, count in Counter(names.values()).items() if count > 1}
    found = {}
    for row in ordered:
        name = names[row.target]
        which = f" ({row.target[:6]})" if name in twice else ""
        label = f"{name}{which}, {row.regime}, {row.provenance}"
        found[label] = Side(label, row)
    return found


def shape_label(row: ShapeRow | WorkloadName) -> str:
    """The shape in words, the same on every target."""
    ranks = f", world {row.world}" if row.world > 1 else ""
    return f"{row.shape} {row.dtype}{ranks}{at_routing(row.routing)}"


def shape_box(
    shapes: Sequence[str], columns: Sequence[DeltaGenerator], below: DeltaGenerator
) -> tuple[str, Sequence[DeltaGenerator]]:
    """The chosen shape, and the columns that are left: the box is the first of them, or where that would cut all of
    the names before they differ, below and as wide as the page."""
    cut = len({shape[:SHOWN_LETTERS] for shape in shapes}) < len(shapes) and max(map(len, shapes)) > COLUMN_LETTERS
    with below if cut else columns[0]:
        shape = st.selectbox("Shape", shapes, key="shape", bind="query-params", format_func=shortened)
    return shape, columns if cut else columns[1:]


def whole_name(shape: str) -> None:
    """The shape once more where its box cuts it: what tells routings and ranks apart is at its end."""
    if len(shape) > SHOWN_LETTERS:
        st.caption(plain(shape))


def _side(
    context: Context,
    side: Side,
    place: int,
    view: ShapeView | None,
    others: tuple[ShapeRow, ...],
    top_us: float | None,
    shape: str,
) -> None:
    st.subheader(plain(shortened(side.label, 90)), anchor=False)
    if view is None:
        found = context.read(_campaign_curves, side.campaign or "", baseline_names())
        mine = found.get(shape, {})
        if not mine:
            st.info("This campaign found nothing of the shape.")
            return
        charts.show(latency_chart.campaign_figure(mine, top_us), f"campaign-{place}")
        st.caption("The best and the fastest baseline of this campaign's trials alone, without intervals.")
        return
    predicted = _predicted(context, view.row, others) if others else {}
    charts.show(
        latency_chart.latency_figure(view, predicted, top_us),
        f"latency-{place}",
        on_select=lambda: _select(f"latency-{place}"),
        selection_mode="points",
    )
    _legend(view, bool(predicted), place)


def _predicted(context: Context, row: ShapeRow, others: tuple[ShapeRow, ...]) -> latency_chart.Predicted:
    try:
        kin = tuple(each for each in others if (each.operator, each.target) == (row.operator, row.target))
        return context.read_at(context.read(queries.shapes_version, kin), predicted_curves, row, kin)
    except MegatuneError as error:
        st.info(f"Nothing is predicted: {plain(error)}")
        return {}


def _legend(view: ShapeView, predicted: bool, place: int) -> None:
    """What the chart cannot say by itself."""
    lines = [
        "Points are medians with their 95 % interval; shaded: what planning would run there. Click a point for its "
        "samples."
    ]
    if predicted:
        lines.append("Dotted: predicted by the latency model, with its interval; nobody measured it.")
    if view.row.provenance is not Provenance.MEASURED:
        lines.append(f"Every figure here is {view.row.provenance}.")
    if view.plan is None:
        lines.append("No baseline was measured, so nothing is decided: each variant's fastest is shown.")
    st.caption(" ".join(lines))
    for crossover in view.plan.crossovers if view.plan is not None else ():
        st.caption(plain(crossover_text(crossover)))
    if view.row.facts:
        facts = [{"tokens": tokens, **mine} for tokens, mine in sorted(view.row.facts.items())]
        folded_table("What its operator says of the workloads", f"facts-{place}", lambda: facts, empty="")


def _select(key: str) -> None:
    """A click on a chart chooses the measurement whose samples are shown."""
    points = st.session_state[key]["selection"]["points"]
    if points and points[0].get("customdata"):
        st.session_state["measurement"] = str(points[0]["customdata"][0])


def _found(context: Context, side: Side, row: ShapeRow) -> Mapping[str, Sequence[tuple[int, float]]]:
    if side.campaign is None:
        return {}
    return context.read(_campaign_curves, side.campaign, baseline_names()).get(shape_label(row), {})


def _campaign_curves(
    session: Any, name: str, baselines: tuple[str, ...]
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By shape and by ``best`` or ``baseline``: tokens and microseconds of what the campaign found."""
    row = queries.campaign(session, name)
    if row is None:
        return {}
    labels = {each.digest: shape_label(each) for each in queries.campaign_workloads(session, row.id)}
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for outcome in queries.outcomes(session, row.id, baselines):
        mine = found.setdefault(labels[outcome.workload], {})
        for kind, us in (("best", outcome.best_us), ("baseline", outcome.baseline_us)):
            if us is not None:
                mine.setdefault(kind, []).append((outcome.tokens, us))
    return found


def _differences(
    view: ShapeView,
    other: ShapeView | None,
    found: Mapping[str, Sequence[tuple[int, float]]],
) -> None:
    """The best of both sides at the tokens that both have."""
    mine = _best_us(view)
    theirs = _best_us(other) if other is not None else dict(found.get("best", ()))
    rows = [
        {
            "tokens": tokens,
            "left µs": mine[tokens],
            "right µs": theirs[tokens],
            "right over left": theirs[tokens] / mine[tokens],
        }
        for tokens in sorted(set(mine) & set(theirs))
    ]
    st.caption(
        "Figures of two targets, regimes or provenances come from two clocks: look at the shape of the curves, not at "
        "a few percent."
    )
    folded_table("Best of both sides", "beside", lambda: rows, empty="Both have no tokens in common.", columns=NUMBERS)


def _best_us(view: ShapeView) -> dict[int, float]:
    return {tokens: mine[0].median_us for tokens, mine in view.candidates.items() if mine}


NUMBERS: dict[str, Any] = {
    name: st.column_config.NumberColumn(name, format=spelled)
    for name, spelled in (
        ("median µs", "%.3f"),
        ("low µs", "%.3f"),
        ("high µs", "%.3f"),
        ("least possible µs", "%.3f"),
        ("share of the limit %", "%.1f"),
        ("left µs", "%.3f"),
        ("right µs", "%.3f"),
        ("right over left", "%.3f"),
    )
}


def _under(context: Context, view: ShapeView) -> None:
    """What lies under the curves, one part at a time: what is not looked at is not computed."""
    chain = view.row.operator == DEPTHS_OPERATOR
    parts = [*(["Prefetch depth"] if chain else []), "Samples", "Bandwidth", "One parameter", "All points"]
    part = st.segmented_control(
        "Look at",
        parts,
        default=parts[0],
        key="part",
        bind="query-params",
        required=True,
    )
    if part == "Bandwidth":
        _bandwidth(view)
    elif part == "One parameter":
        _parameter(context, view)
    elif part == "Prefetch depth":
        _depths(context, view)
    elif part == "All points":
        table("points", _points(view), empty="There are no points.", columns=NUMBERS)
    else:
        _samples(context, view)


def _bandwidth(view: ShapeView) -> None:
    made = latency_chart.share_figure(view)
    if made is None:
        st.info(
            "Nothing can be said of the limit: the GPU's rated speeds are not known, no baseline was measured, or all "
            "ranks shared one GPU."
        )
        return
    charts.show(made, "share")
    st.caption(
        "The least time for the bytes and operations of a launch, at the speeds that the maker rates the GPU with, "
        "over the measured time. No kernel reaches them: on an H200 a copy was measured at 89 % of the memory's. "
        f"Speeds from {SOURCE}."
    )


def _depths(context: Context, view: ShapeView) -> None:
    """How deep to prefetch, and from which tokens it hurts."""
    curves = context.read_at(context.read(queries.shapes_version, (view.row,)), depth_curves, view.row)
    if not curves:
        st.info("No depth of a prefetch works here.")
        return
    charts.show(latency_chart.depths_figure(curves), "depths")
    st.caption("Stars: the best depth; open circles: depths that tie with it. 95 % intervals.")
    for curve in curves:
        st.caption(plain(depth_text(curve)))
    said = off_text(view.plan) if view.plan is not None else ""
    if said:
        st.caption(plain(said))
    rows = [
        {
            "tokens": curve.workload.tokens,
            "depth MiB": point.depth_mib,
            "median µs": point.candidate.median_us,
            "low µs": point.candidate.low_us,
            "high µs": point.candidate.high_us,
            "over the best": point.over_best.ratio,
            "best": point.depth_mib == curve.best_mib,
            "measurement": point.candidate.measurement_id,
        }
        for curve in curves
        for point in curve.points
    ]
    folded_table("As a table", "depths", lambda: rows, empty="", columns=NUMBERS)


def _parameter(context: Context, view: ShapeView) -> None:
    parameters: dict[str, list[str]] = {}
    for mine in view.candidates.values():
        for candidate in mine:
            known = parameters.setdefault(candidate.variant, [])
            known += [name for name in candidate.params if name not in known]
    parameters = {variant: sorted(names) for variant, names in sorted(parameters.items()) if names}
    if not parameters:
        st.info("The configs that were measured have no parameters.")
        return
    columns = st.columns(2)
    with columns[0]:
        variant = st.selectbox("Variant", list(parameters), key="variant", bind="query-params", format_func=shortened)
    names = parameters[variant]
    depth = next((place for place, name in enumerate(names) if "depth" in name or "stages" in name), 0)
    with columns[1]:
        parameter = st.selectbox(
            "Parameter", names, index=depth, key="parameter", bind="query-params", format_func=shortened
        )
    points = context.read(queries.parameter_curves, view.row, variant=variant, parameter=parameter)
    if not points:
        st.info("No search has measured this parameter here.")
        return
    charts.show(latency_chart.parameter_figure(points, parameter), "parameter-chart")
    st.caption("Of every value the fastest config that a search measured, whatever its other parameters.")
    rows = [
        {
            "tokens": point.tokens,
            parameter: str(point.value),
            "median µs": point.median_us,
            "low µs": point.low_us,
            "high µs": point.high_us,
        }
        for point in points
    ]
    folded_table("As a table", "parameter", lambda: rows, empty="", columns=NUMBERS)


def _points(view: ShapeView) -> list[dict[str, Any]]:
    rows = []
    for curve in view.plan.curves if view.plan is not None else ():
        for point in curve.points if curve.kind != "exporter" else ():
            least = view.floors.get(curve.name, {}).get(point.tokens)
            share = view.share(curve.name, point.tokens, point.latency.median_us)
            rows.append(
                {
                    "curve": curve.name,
                    "kind": curve.kind,
                    "tokens": point.tokens,
                    "median µs": point.latency.median_us,
                    "low µs": point.latency.low_us,
                    "high µs": point.latency.high_us,
                    "least possible µs": None if least is None else least.us,
                    "share of the limit %": None if share is None else 100 * share,
                    "stage": str(point.stage),
                    "provenance": str(point.provenance),
                    "params": " ".join(f"{name}={value}" for name, value in sorted(point.params.items())),
                    "config": point.config,
                    "measurement": point.evidence,
                }
            )
    return rows


def _samples(context: Context, view: ShapeView) -> None:
    options = {
        str(point.evidence): f"{curve.name} at {latency_chart.tokens_words(point.tokens)}"
        for curve in (view.plan.curves if view.plan is not None else ())
        if curve.kind != "exporter"
        for point in curve.points
    }
    for tokens, mine in view.candidates.items():
        for candidate in mine[:3]:
            options.setdefault(
                str(candidate.measurement_id), f"{candidate.variant} at {latency_chart.tokens_words(tokens)}"
            )
    clicked = st.session_state.get("measurement")
    if clicked and clicked not in options:
        options[clicked] = f"measurement {clicked}"
    if not options:
        return
    chosen = st.selectbox(
        "Samples of",
        list(options),
        key="measurement",
        bind="query-params",
        format_func=lambda number: shortened(options.get(number, number)),
    )
    samples_of(context, int(chosen))
