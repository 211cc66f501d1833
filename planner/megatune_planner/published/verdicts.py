"""What published measurements say of the limits that were chosen by them, or in spite of them."""

from __future__ import annotations

from collections.abc import Sequence

from megatune_planner.published.chosen import Choice
from megatune_planner.published.model import Answer
from megatune_planner.published.model import PublishedCrossover
from megatune_planner.published.units import Unit
from megatune_planner.published.units import Where


def verdict(choice: Choice, found: Sequence[Answer]) -> str:
    """What the measured crossovers of the choice's group say of where it begins and ends."""
    said: dict[str, None] = {}
    for each in found:
        named = ("", each.group, each.group.partition("=")[2])
        if choice.where.world not in (None, each.world) or choice.group not in named:
            continue
        where = Where(each.world, each.width, choice.where.item_bytes)
        for crossover in each.crossovers:
            if not crossover.measured or choice.mode not in (crossover.below, crossover.above):
                continue
            other = crossover.above if choice.mode == crossover.below else crossover.below
            against = f"against {other}, {each.group}" if each.group else f"against {other}"
            # What serves from a place on claims that the other is faster up to the one before.
            claims = [(f"up to {choice.last}", choice.mode, choice.last)] if choice.last is not None else []
            if choice.first is not None and choice.first > 1:
                claims.append((f"from {choice.first}", other, choice.first - 1))
            for end, faster, last in claims:
                at = _converted(last, choice.scale.unit, crossover.unit, where)
                if at is not None:
                    said[f"{end}: {_judged(faster, at, crossover, alone=len(claims) == 1)} ({against})"] = None
    return "; ".join(said)


def _judged(small: str | None, at: float, crossover: PublishedCrossover, *, alone: bool) -> str:
    """:param small: who is claimed to be faster up to ``at``, and the other beyond.
    :param alone: whether nothing else is claimed, so that beyond is everything beyond.
    """
    outside = at < crossover.first_place or at >= crossover.last_place
    if crossover.kind == "never":
        if crossover.faster is None:
            return "the two tie at every measured place"
        # Where the end lies outside, one of the two is claimed for every measured place: which is the faster?
        agrees = outside and (at >= crossover.last_place) == (crossover.faster == small)
        return "outside what was measured" if agrees else "contradicted"
    if outside:
        return "contradicted" if alone else "outside what was measured"
    if any(low <= at and (high is None or at < high) for low, high in crossover.changes):
        if crossover.kind == "contested":
            return "at one of several changes"
        if small == crossover.below:
            return "as measured" if crossover.kind == "point" else "inside the interval, where nothing was measured"
    return "contradicted"


def _converted(at: float, unit: Unit, wanted: Unit, where: Where) -> float | None:
    if unit == wanted:
        return at
    if wanted == "tokens":
        return where.tokens(unit, at)
    if wanted == "traffic bytes":
        return where.traffic_bytes(unit, at)
    return where.payload_bytes(unit, at) if wanted == "bytes" else None
