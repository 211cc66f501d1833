"""What changes where one plan replaces another: bands that decide otherwise, and what that does to measured times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Literal

from megatune_planner.band_schema import BandPoint
from megatune_planner.band_schema import UseConfig
from megatune_planner.band_schema import UseStock
from megatune_planner.bands import weights_of
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.schema import Microseconds
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens

STOCK = UseStock()


class Effect(Part):
    """Both decisions at one measured number of tokens."""

    tokens: Tokens
    """Exactly as measured."""
    before_us: Microseconds | None
    """Median of what the first plan serves; None where it was not measured here on the second plan's target."""
    after_us: Microseconds | None
    """Median of what the second plan serves."""
    basis: Literal["same", "own", "unknown"]
    """``same``: both figures are of one plan's measurements; ``own``: each is of its own plan's; ``unknown``: one is
    missing."""


class Change(Part):
    """Neighbouring tokens whose decision changes in one way."""

    tokens_lo: Tokens
    """First tokens inside."""
    tokens_hi: Tokens | None
    """None: without end."""
    before: UseConfig | UseStock
    """What the first plan serves."""
    after: UseConfig | UseStock
    """What the second plan serves."""
    effects: tuple[Effect, ...]
    """At each number of tokens inside that either plan measured, ascending."""


class ShapeDifference(Part):
    """What changes of one shape."""

    operator: str
    """Of the shape."""
    shape: str
    """The dims as a key."""
    dtype: str
    """Of the operands."""
    world: int
    """Ranks that take part in one launch."""
    routing: str
    """How tokens are spread over experts."""
    presence: Literal["both", "before", "after"]
    """Which plan has the shape; stock serves it where one has not."""
    changes: tuple[Change, ...]
    """Ascending; empty where every decision is the same."""
    points: tuple[Effect, ...]
    """At each number of tokens that either plan measured, where nothing changes too."""
    before_us: Microseconds | None
    """Expected time of one launch under the second plan's traffic, over the points where both are known."""
    after_us: Microseconds | None
    """The same of the second plan."""


class PlanDifference(Part):
    """From one plan to another."""

    before: str
    """Digest."""
    after: str
    """Digest."""
    lineage: Literal["same", "child", "parent", "unrelated"]
    """Whether the second plan says that it replaces the first (``child``), or the other way round."""
    comparable: bool
    """Whether both are of one target and regime; figures of two are never compared."""
    gate: tuple[str, ...]
    """What differs in what they hold for, each in a few words."""
    shapes: tuple[ShapeDifference, ...]
    """Every shape of either plan."""
    before_us: Microseconds | None
    """One launch of each shape, over what is known of both; None where nothing is."""
    after_us: Microseconds | None
    """The same of the second plan."""
    ratio: float | None
    """Geometric mean over the points of all shapes of the second plan's time over the first's; below 1 is faster."""
    unknown: int
    """Points at which a decision changes and its effect was not measured."""


def difference(before: Plan, after: Plan) -> PlanDifference:
    """What changes when ``after`` replaces ``before``. Nothing is measured: figures are those that the plans carry."""
    comparable = (before.content.target.digest, before.content.regime) == (
        after.content.target.digest,
        after.content.regime,
    )
    old, new = _shapes(before), _shapes(after)
    shapes = tuple(
        _shape(key, old.get(key), new.get(key), after.content.options.traffic, comparable=comparable)
        for key in dict.fromkeys((*new, *old))
    )
    known = [each for each in shapes if each.before_us is not None and each.after_us is not None]
    ratios = [
        math.log(point.after_us / point.before_us)
        for each in shapes
        for point in each.points
        if point.before_us and point.after_us
    ]
    return PlanDifference(
        before=before.digest,
        after=after.digest,
        lineage=_lineage(before, after),
        comparable=comparable,
        gate=tuple(_gate(before, after)),
        shapes=shapes,
        before_us=sum(each.before_us or 0 for each in known) or None,
        after_us=sum(each.after_us or 0 for each in known) or None,
        ratio=math.exp(sum(ratios) / len(ratios)) if ratios else None,
        unknown=sum(
            effect.basis == "unknown" for each in shapes for change in each.changes for effect in change.effects
        ),
    )


_Key = tuple[str, str, str, int, str]


def _shapes(plan: Plan) -> dict[_Key, ShapePlan]:
    return {(operator.name, *shape.key): shape for operator in plan.content.operators for shape in operator.shapes}


def _lineage(before: Plan, after: Plan) -> Literal["same", "child", "parent", "unrelated"]:
    if before.digest == after.digest:
        return "same"
    if after.content.parent == before.digest:
        return "child"
    return "parent" if before.content.parent == after.digest else "unrelated"


def _gate(before: Plan, after: Plan) -> Iterator[str]:
    old, new = before.content.gate.model_dump(mode="json"), after.content.gate.model_dump(mode="json")
    for name, value in new.items():
        if old[name] != value:
            yield f"{name}: {_spelled(old[name])} to {_spelled(value)}"


def _spelled(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name} {each}" for name, each in value.items())
    return str(value)


def _shape(
    key: _Key, old: ShapePlan | None, new: ShapePlan | None, traffic: dict[str, float], *, comparable: bool
) -> ShapeDifference:
    operator, shape, dtype, world, routing = key
    sources = [each for each in (new, old if comparable else None) if each is not None]
    tokens = sorted({point.tokens for each in (old, new) if each for band in each.bands for point in band.points})
    points = tuple(_effect(t, old, new, sources, comparable=comparable) for t in tokens)
    known = [point for point in points if point.before_us and point.after_us]
    weights = weights_of(known, {int(at): weight for at, weight in traffic.items()}) if known else []
    return ShapeDifference(
        operator=operator,
        shape=shape,
        dtype=dtype,
        world=world,
        routing=routing,
        presence="both" if old and new else "before" if old else "after",
        changes=tuple(_changes(old, new, points)),
        points=points,
        before_us=_expected([point.before_us for point in known], weights),
        after_us=_expected([point.after_us for point in known], weights),
    )


def _expected(times: Sequence[float | None], weights: Sequence[float]) -> float | None:
    return sum(weight * (us or 0) for weight, us in zip(weights, times, strict=True)) if times else None


def _changes(old: ShapePlan | None, new: ShapePlan | None, points: Sequence[Effect]) -> Iterator[Change]:
    starts = sorted({band.tokens_lo for each in (old, new) if each for band in each.bands})
    pieces: list[tuple[int, UseConfig | UseStock, UseConfig | UseStock]] = []
    for start in starts:
        piece = (_decision(old, start), _decision(new, start))
        if not pieces or (_name(pieces[-1][1]), _name(pieces[-1][2])) != (_name(piece[0]), _name(piece[1])):
            pieces.append((start, *piece))
    for (lo, before, after), following in zip(pieces, [*pieces[1:], None], strict=True):
        if _name(before) != _name(after):
            hi = None if following is None else following[0] - 1
            inside = tuple(each for each in points if lo <= each.tokens and (hi is None or each.tokens <= hi))
            yield Change(tokens_lo=lo, tokens_hi=hi, before=before, after=after, effects=inside)


def _decision(shape: ShapePlan | None, tokens: int) -> UseConfig | UseStock:
    return STOCK if shape is None else shape.band(tokens).decision


def _name(decision: UseConfig | UseStock) -> str:
    """The same for decisions that serve alike: what the fastest baseline is called changes nothing."""
    return decision.config if decision.kind == "config" else ""


def _effect(
    tokens: int, old: ShapePlan | None, new: ShapePlan | None, sources: Sequence[ShapePlan], *, comparable: bool
) -> Effect:
    before, after = _decision(old, tokens), _decision(new, tokens)
    for source in sources:
        times = _measured(source, before, tokens), _measured(source, after, tokens)
        if None not in times:
            return Effect(tokens=tokens, before_us=times[0], after_us=times[1], basis="same")
    own = (
        _measured(old, before, tokens) if old and comparable else None,
        _measured(new, after, tokens) if new else None,
    )
    return Effect(tokens=tokens, before_us=own[0], after_us=own[1], basis="unknown" if None in own else "own")


def _measured(shape: ShapePlan, decision: UseConfig | UseStock, tokens: int) -> float | None:
    """Median of the decision at these tokens among what the plan carries."""
    point = _point(shape, tokens)
    if decision.kind == "stock":
        return point.baseline_latency.median_us if point else None
    if point and _name(shape.band(tokens).decision) == decision.config:
        return point.latency.median_us
    found = (curve.at(tokens) for curve in shape.curves if curve.kind != "baseline")
    return next((each.latency.median_us for each in found if each and each.config == decision.config), None)


def _point(shape: ShapePlan, tokens: int) -> BandPoint | None:
    return next((point for point in shape.band(tokens).points if point.tokens == tokens), None)
