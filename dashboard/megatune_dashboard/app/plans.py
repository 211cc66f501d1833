"""What the pages say of plans, as rows of tables and as a picture; nothing here draws on a page."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from megatune_dashboard.app.context import Context
from megatune_db import queries
from megatune_db.queries import PlanSummary
from megatune_db.records import Measurement
from megatune_kernels.errors import MegatuneError
from megatune_planner.against_stock import StockComparison
from megatune_planner.band_schema import BandPoint
from megatune_planner.differences import Change
from megatune_planner.differences import PlanDifference
from megatune_planner.differences import ShapeDifference
from megatune_planner.objective import ANY
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.rendering import decision_text
from megatune_planner.rendering import facts_text
from megatune_planner.rendering import routing_text
from megatune_planner.rendering import tokens_text
from megatune_planner.thresholds import Threshold

SHORT = 12
"""Letters of a digest that tell plans apart for people."""
BASES = {"same": "one plan's measurements", "own": "each plan's own", "unknown": "not measured"}
"""What an effect rests on."""


@lru_cache(maxsize=16)
def _parsed(content: str) -> Plan:
    return Plan.from_json(content)


def loaded(context: Context, digest: str) -> Plan:
    """The plan of that digest.

    :raises MegatuneError: when the database has none, or it is of a schema that this program does not read.
    """
    row = context.read(queries.plan, digest)
    if row is None:
        raise MegatuneError(f"the database has no plan {digest}")
    return _parsed(row.content)


def label(row: PlanSummary) -> str:
    """For a list to choose from."""
    made = row.created_at.strftime("%Y-%m-%d %H:%M")
    return f"{row.name} · {row.digest[:SHORT]} · {row.state} · {made}"


def service_text(row: PlanSummary, gpu: str) -> str:
    """Where the plan serves."""
    worlds = f"world {', '.join(map(str, row.worlds))}" if row.worlds else "any world"
    return f"{gpu}, {row.model}, {worlds}"


def shape_key(shape: ShapeDifference) -> str:
    """What tells a shape from every other, in addresses and names of files."""
    return f"{shape.operator}-{shape.shape}-{shape.dtype}-{shape.world}-{shape.routing}"


def shape_title(shape: ShapeDifference) -> str:
    """Operator and shape, and what becomes of it."""
    title = f"{shape.operator} {shape.shape} ({_kind_text(shape)})"
    if shape.presence != "both":
        title += ": only in this plan" if shape.presence == "after" else ": no longer in this plan"
    if not shape.changes:
        return f"{title}: nothing changes"
    changes = f"{len(shape.changes)} change{'s' if len(shape.changes) > 1 else ''}"
    return f"{title}: {changes}, {effect_text(shape.before_us, shape.after_us)}"


def effect_text(before_us: float | None, after_us: float | None) -> str:
    """From one time to the other, in µs and in percent."""
    if before_us is None or after_us is None:
        return "effect not measured"
    return f"{before_us:.2f} to {after_us:.2f} µs ({after_us / before_us - 1:+.1%})"


def stock_key(found: StockComparison) -> str:
    """The same as ``shape_key`` of the same shape."""
    shape = found.shape
    return f"{found.operator}-{shape.shape}-{shape.dtype}-{shape.world}-{shape.routing}"


def stock_title(found: StockComparison) -> str:
    """Operator and shape, and what the plan saves."""
    shape = found.shape
    effect = effect_text(found.stock_us, found.plan_us)
    return f"{found.operator} {shape.shape} ({_kind_text(shape)}): {effect} against {'/'.join(found.baselines)}"


def _kind_text(shape: ShapeDifference | ShapePlan) -> str:
    """What tells shapes of the same dims apart."""
    words = [shape.dtype]
    if shape.world > 1:
        words.append(f"world {shape.world}")
    if isinstance(shape, ShapePlan) and shape.mix is not None:
        words.append(shape.mix.text)
    elif shape.routing != "none":
        words.append(f"{shape.routing} routing" if shape.routing == ANY else f"routing {shape.routing}")
    return ", ".join(words)


def change_rows(shape: ShapeDifference) -> list[dict[str, Any]]:
    """One row for each measured number of tokens of each change; one where a change has none."""
    return [row for change in shape.changes for row in _change_rows(change)]


def _change_rows(change: Change) -> Iterable[dict[str, Any]]:
    # Figures come first: on a phone a config fills the width.
    tokens = {"tokens": _tokens(change.tokens_lo, change.tokens_hi)}
    decisions = {"now": decision_text(change.before), "this plan": decision_text(change.after)}
    if not change.effects:
        blank = dict.fromkeys(("at tokens", "now µs", "this plan µs", "time %"))
        yield tokens | blank | decisions | {"rests on": BASES["unknown"]}
    for effect in change.effects:
        before, after = effect.before_us, effect.after_us
        yield (
            tokens
            | {
                "at tokens": effect.tokens,
                "now µs": before,
                "this plan µs": after,
                "time %": None if before is None or after is None else 100 * (after / before - 1),
            }
            | decisions
            | {"rests on": BASES[effect.basis]}
        )


def band_rows(shape: ShapePlan) -> list[dict[str, Any]]:
    """The plan's bands against stock: a row for each measured number of tokens, or one where none was measured."""
    rows = []
    for band in shape.bands:
        tokens = {"tokens": tokens_text(band)}
        rest = {
            "this plan": decision_text(band.decision),
            "predicted %": 100 * band.predicted_share if band.tokens_hi is not None else None,
            "why": band.reason,
        }
        for point in band.points:
            figures = {
                "at tokens": point.tokens,
                "stock µs": point.baseline_latency.median_us,
                "this plan µs": point.latency.median_us,
                "saves %": 100 * point.gain,
                "interval µs": f"{point.latency.low_us:.2f}-{point.latency.high_us:.2f}",
                "stock": point.baseline,
                "paired": point.paired,
            }
            rows.append(tokens | figures | rest | _beside(point))
        if not band.points:
            blank = ("at tokens", "stock µs", "this plan µs", "saves %", "interval µs", "stock", "paired")
            rows.append(tokens | dict.fromkeys(blank) | rest)
    return rows


def _beside(point: BandPoint) -> dict[str, Any]:
    """What is said of few operators' workloads alone."""
    found = {"at each routing": "; ".join(map(routing_text, point.routings)), "workload": facts_text(point.facts or {})}
    return {name: text for name, text in found.items() if text}


def band_evidence(shape: ShapePlan) -> list[tuple[int, ...]]:
    """Evidence of each row of ``band_rows``."""
    return [evidence for band in shape.bands for evidence in ([p.evidence for p in band.points] or [()])]


def evidence_at(plan: Plan, shape: ShapeDifference, tokens: int | None) -> tuple[int, ...]:
    """Measurements that the plan has for a shape at these tokens: of its band, and of every curve."""
    mine = find_shape(plan, shape)
    if mine is None or tokens is None:
        return ()
    points = [point.evidence for point in mine.band(tokens).points if point.tokens == tokens]
    curves = [point.evidence for curve in mine.curves if (point := curve.at(tokens)) is not None]
    return tuple(sorted({*(each for evidence in points for each in evidence), *curves}))


def find_shape(plan: Plan, shape: ShapeDifference) -> ShapePlan | None:
    """The shape in the plan; None where it has none."""
    key = (shape.shape, shape.dtype, shape.world, shape.routing)
    return next(
        (
            each
            for operator in plan.content.operators
            if operator.name == shape.operator
            for each in operator.shapes
            if each.key == key
        ),
        None,
    )


def evidence_rows(found: dict[int, Measurement], configs: dict[str, str]) -> list[dict[str, Any]]:
    """One row a measurement.

    :param configs: text of each config by digest.
    """
    return [
        {
            "measurement": id_,
            "config": configs.get(each.config, each.config[:SHORT]),
            "median µs": each.median_us,
            "low µs": each.low_us,
            "high µs": each.high_us,
            "samples": len(each.samples_us),
            "stage": str(each.stage),
            "session": each.session,
            "provenance": str(each.provenance),
            "regime": str(each.regime),
            "SM MHz": each.sm_clock_mhz,
            "measured at (UTC)": each.measured_at,
        }
        for id_, each in sorted(found.items())
    ]


def config_names(plan: Plan) -> dict[str, str]:
    """What each config in the plan's curves and bands is called, by digest."""
    names: dict[str, str] = {}
    for operator in plan.content.operators:
        for shape in operator.shapes:
            for curve in shape.curves:
                for point in curve.points:
                    words = [f"{name}={value}" for name, value in sorted(point.params.items()) if value is not False]
                    names[point.config] = " ".join([point.variant, *words])
            for band in shape.bands:
                if band.decision.kind == "config":
                    names[band.decision.config] = decision_text(band.decision)
    return names


def threshold_rows(found: Iterable[Threshold]) -> list[dict[str, Any]]:
    """One row a number."""
    return [
        {
            "where": each.where,
            "what": each.what,
            "value": each.value,
            "unit": each.unit,
            "95 % interval": "" if each.low is None else f"{each.low:g} to {each.high:g}",
            "measurements": len(each.evidence),
        }
        for each in found
    ]


def summary_rows(found: PlanDifference) -> list[dict[str, Any]]:
    """One row a shape."""
    return [
        {
            "operator": each.operator,
            "shape": each.shape,
            "world": each.world,
            "changes": len(each.changes),
            "now µs": each.before_us,
            "this plan µs": each.after_us,
            "time %": 100 * (each.after_us / each.before_us - 1) if each.before_us and each.after_us else None,
        }
        for each in found.shapes
    ]


def stock_rows(found: Iterable[StockComparison]) -> list[dict[str, Any]]:
    """One row a shape."""
    return [
        {
            "operator": each.operator,
            "shape": each.shape.shape,
            "world": each.shape.world,
            "bands": len(each.shape.bands),
            "stock µs": each.stock_us,
            "this plan µs": each.plan_us,
            "time %": 100 * (each.plan_us / each.stock_us - 1) if each.stock_us and each.plan_us else None,
        }
        for each in found
    ]


def _tokens(lo: int, hi: int | None) -> str:
    if hi is None:
        return f"{lo}+"
    return str(lo) if lo == hi else f"{lo}-{hi}"
