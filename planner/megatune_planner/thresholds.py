"""Every number that a plan's decisions turn on, each with its unit."""

from __future__ import annotations

from collections.abc import Iterator

from megatune_planner.crossover_schema import Crossover
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.routings import at_routing
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part


class Threshold(Part):
    """One number."""

    where: str
    """Operator and shape; empty for the whole plan."""
    what: str
    """What it limits."""
    value: float
    """In ``unit``."""
    unit: str
    """``tokens`` or ``bytes``, or what the rule says."""
    low: float | None = None
    """Lower end of its 95 % interval; None where it has none."""
    high: float | None = None
    """Upper end."""
    evidence: tuple[MeasurementId, ...] = ()
    """What it rests on."""


def thresholds(plan: Plan) -> list[Threshold]:
    """Those of bands, crossovers and fallback rules, shape by shape."""
    found: list[Threshold] = []
    for operator in plan.content.operators:
        for shape in operator.shapes:
            where = f"{operator.name} {shape.shape}" + (f" world {shape.world}" if shape.world > 1 else "")
            where += at_routing(shape.routing)
            found += _bands(where, shape)
            for crossover in shape.crossovers:
                found += _crossover(where, crossover)
    return [*found, *_rules(plan)]


def _bands(where: str, shape: ShapePlan) -> Iterator[Threshold]:
    for band in shape.bands:
        decision = band.decision
        name = decision.variant if decision.kind == "config" else "stock"
        if band.tokens_hi is not None:
            evidence = tuple(sorted({each for point in band.points for each in point.evidence}))
            yield Threshold(
                where=where, what=f"last tokens of {name}", value=band.tokens_hi, unit="tokens", evidence=evidence
            )
        if decision.kind == "config" and decision.workspace_bytes:
            what = f"workspace of {name} from {band.tokens_lo} tokens on, on every rank"
            yield Threshold(where=where, what=what, value=decision.workspace_bytes, unit="bytes")


def _crossover(where: str, crossover: Crossover) -> Iterator[Threshold]:
    if crossover.kind == "never":
        return
    what = f"crossover of {crossover.below} and {crossover.above}"
    estimate = crossover.estimate_tokens
    yield Threshold(
        where=where,
        what=what,
        value=crossover.tokens_hi if estimate is None else estimate,
        unit="tokens",
        low=crossover.tokens_lo,
        high=crossover.tokens_hi,
        evidence=crossover.evidence,
    )
    if crossover.traffic is not None:
        traffic = crossover.traffic
        yield Threshold(
            where=where,
            what=f"{what}, one-shot traffic of a rank",
            value=traffic.bytes_hi if traffic.estimate_bytes is None else traffic.estimate_bytes,
            unit="bytes",
            low=traffic.bytes_lo,
            high=traffic.bytes_hi,
            evidence=crossover.evidence,
        )


def _rules(plan: Plan) -> Iterator[Threshold]:
    for rule in plan.content.fallback:
        if rule.when == "outside_tokens":
            where = f"{rule.operator} {rule.shape}" + (f" world {rule.world}" if rule.world > 1 else "")
            where += at_routing(rule.routing)
            if rule.below > 1:
                yield Threshold(where=where, what="stock below", value=rule.below, unit=rule.unit)
            yield Threshold(where=where, what="stock above", value=rule.above, unit=rule.unit)
        elif rule.when == "workspace_too_small":
            where = f"{rule.operator} {rule.shape} world {rule.world}{at_routing(rule.routing)}"
            what = "stock where a rank's workspace is below"
            yield Threshold(where=where, what=what, value=rule.workspace_bytes, unit=rule.unit)
        elif rule.when == "context_too_long":
            where, evidence = f"{rule.operator} {rule.shape}{at_routing(rule.routing)}", rule.evidence
            for what, value, unit in (
                ("stock for contexts above", float(rule.above), rule.unit),
                ("error that may serve", rule.error_limit, rule.error_unit),
            ):
                yield Threshold(where=where, what=what, value=value, unit=unit, evidence=evidence)
