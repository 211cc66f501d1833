"""What a plan says where the same shape was measured at several routings: whether its winner changes with the routing.

Where each routing has a table of its own, a reader knows under which it serves; who does not know it sees from a band's
reason that another routing of the same shape is served otherwise, and at which tokens: by which variant, or by what
unlike values of the same one, since the rest is in that routing's table. Where one table is for all of them, a band's
reason says at which routing alone which config would serve, and would not tie: by what differs from the band's own, and
whole where it is of another variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from megatune_kernels.space import Value
from megatune_planner.band_schema import Band
from megatune_planner.plan import ShapePlan

CHANGES = "the winner changes with the routing: "

Ties = AbstractSet[tuple[str, int, str]]
"""Routing, tokens and digest of each config that ties with the fastest there."""


def at_routing(routing: str) -> str:
    """The routing behind a shape's name; empty where nothing is routed."""
    return "" if routing == "none" else f", routing {routing}"


def routing_suffix(shape: ShapePlan) -> str:
    """At which routing, or over which, a shape was decided, behind its name; empty where nothing is routed."""
    if shape.mix is not None:
        return f", {shape.mix.text}"
    return at_routing(shape.routing)


def told_of_routings(shapes: Sequence[ShapePlan], ties: Mapping[tuple[str, str, int], Ties]) -> list[ShapePlan]:
    """The same shapes, with bands that say where another routing has another winner.

    :param ties: by shape, dtype and world what is as good as the winner of a routing.
    """
    return [
        _told(
            shape,
            [other for other in shapes if _differs_in_routing(shape, other)],
            ties.get((shape.shape, shape.dtype, shape.world), frozenset()),
            briefly=True,
        )
        for shape in shapes
    ]


def told_of_routings_in(shape: ShapePlan, others: Sequence[ShapePlan], ties: Ties = frozenset()) -> ShapePlan:
    """The shape, with bands that say where one of the others, which the plan does not have, has another winner.

    :param others: the same shape at other routings.
    :param ties: what is as good as the winner of another.
    """
    return _told(shape, others, ties, briefly=False)


def _told(shape: ShapePlan, others: Sequence[ShapePlan], ties: Ties, *, briefly: bool) -> ShapePlan:
    """
    :param briefly: whether the others' configs can be looked up in the plan.
    """
    if not others:
        return shape
    return shape.model_copy(update={"bands": tuple(_band(band, others, ties, briefly) for band in shape.bands)})


def changes_text(band: Band) -> str:
    """What the band's reason says of that; empty where it says nothing."""
    before, found, after = band.reason.partition(CHANGES)
    return f"{found}{after}" if found and before.endswith("; ") else ""


def _differs_in_routing(one: ShapePlan, other: ShapePlan) -> bool:
    same = (one.shape, one.dtype, one.world) == (other.shape, other.dtype, other.world)
    return same and one.routing != other.routing


def _band(band: Band, others: Sequence[ShapePlan], ties: Ties, briefly: bool) -> Band:
    changes = "; ".join(change for other in others for change in _changes(band, other, ties, briefly))
    if not changes:
        return band
    return band.model_copy(update={"reason": f"{band.reason}; {CHANGES}{changes}"})


def _changes(band: Band, other: ShapePlan, ties: Ties, briefly: bool) -> Iterator[str]:
    """Where tokens of the band that were measured at another routing are served otherwise there."""
    mine = band.decision.config if band.decision.kind == "config" else ""
    for theirs in other.bands:
        tokens = [
            point.tokens
            for point in theirs.points
            if band.covers(point.tokens) and (other.routing, point.tokens, mine) not in ties
        ]
        if not tokens or not band.points or _config(theirs) == _config(band):
            continue
        where = f"{tokens[0]} to {tokens[-1]} tokens" if len(tokens) > 1 else f"{tokens[0]} tokens"
        yield f"{other.routing} has {_served(theirs, band, briefly)} at {where}"


def _config(band: Band) -> tuple[str, dict[str, Value]]:
    decision = band.decision
    return (decision.variant, dict(decision.params)) if decision.kind == "config" else ("stock", {})


def _served(theirs: Band, mine: Band, briefly: bool) -> str:
    """What serves there, told apart from the band's own."""
    variant, params = _config(theirs)
    own_variant, own = _config(mine)
    if variant == own_variant:
        params = {name: value for name, value in params.items() if name not in own or value != own[name]}
    elif briefly:
        params = {}
    return " ".join([variant, *(f"{name}={value}" for name, value in sorted(params.items()))])
