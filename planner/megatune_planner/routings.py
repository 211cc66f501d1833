"""What a plan says where the same shape was measured at several routings: whether its winner changes with the routing.

Each routing has a table of its own, because a reader knows under which it serves. Who does not know it sees from a
band's reason that another routing of the same shape is served otherwise, and at which tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from megatune_planner.band_schema import Band
from megatune_planner.plan import ShapePlan


def told_of_routings(shapes: Sequence[ShapePlan]) -> list[ShapePlan]:
    """The same shapes, with bands that say where another routing has another winner."""
    return [_told(shape, [other for other in shapes if _differs_in_routing(shape, other)]) for shape in shapes]


def _differs_in_routing(one: ShapePlan, other: ShapePlan) -> bool:
    same = (one.shape, one.dtype, one.world) == (other.shape, other.dtype, other.world)
    return same and one.routing != other.routing


def _told(shape: ShapePlan, others: Sequence[ShapePlan]) -> ShapePlan:
    if not others:
        return shape
    return shape.model_copy(update={"bands": tuple(_band(band, others) for band in shape.bands)})


def _band(band: Band, others: Sequence[ShapePlan]) -> Band:
    changes = "; ".join(change for other in others for change in _changes(band, other))
    if not changes:
        return band
    return band.model_copy(update={"reason": f"{band.reason}; the winner changes with the routing: {changes}"})


def _changes(band: Band, other: ShapePlan) -> Iterator[str]:
    """Where tokens of the band that were measured at another routing are served otherwise there."""
    for theirs in other.bands:
        tokens = [point.tokens for point in theirs.points if band.covers(point.tokens)]
        if not tokens or not band.points or _served(theirs) == _served(band):
            continue
        where = f"{tokens[0]} to {tokens[-1]} tokens" if len(tokens) > 1 else f"{tokens[0]} tokens"
        yield f"{other.routing} has {_served(theirs)} at {where}"


def _served(band: Band) -> str:
    decision = band.decision
    if decision.kind == "config":
        return " ".join([decision.variant, *(f"{name}={value}" for name, value in sorted(decision.params.items()))])
    return "stock"
