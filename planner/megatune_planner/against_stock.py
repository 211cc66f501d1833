"""What a plan saves against what serves without it, shape by shape."""

from __future__ import annotations

from megatune_planner.band_schema import BandPoint
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.schema import Microseconds
from megatune_planner.schema import Part


class StockComparison(Part):
    """Expected times of one launch of a shape under the plan's traffic, over the tokens that were measured."""

    operator: str
    """Of the shape."""
    baselines: tuple[str, ...]
    """What the decisions are compared with: at each number of tokens the fastest that worked."""
    shape: ShapePlan
    """The shape in the plan."""
    stock_us: Microseconds | None
    """Of the fastest baseline; None where nothing was measured at tokens that have traffic."""
    plan_us: Microseconds | None
    """Of the plan's decisions."""


def against_stock(plan: Plan) -> list[StockComparison]:
    """Every shape of the plan, in its order."""
    return [
        _comparison(operator.name, shape, plan.content.options.traffic)
        for operator in plan.content.operators
        for shape in operator.shapes
    ]


def _comparison(operator: str, shape: ShapePlan, traffic: dict[str, float]) -> StockComparison:
    weighed = [(_weight(point, traffic), point) for band in shape.bands for point in band.points]
    total = sum(weight for weight, _ in weighed)
    return StockComparison(
        operator=operator,
        baselines=shape.fastest_baselines,
        shape=shape,
        stock_us=sum(weight * point.baseline_latency.median_us for weight, point in weighed) / total if total else None,
        plan_us=sum(weight * point.latency.median_us for weight, point in weighed) / total if total else None,
    )


def _weight(point: BandPoint, traffic: dict[str, float]) -> float:
    return traffic.get(str(point.tokens), 0.0) if traffic else 1.0
