"""What a plan does to a whole decode step, against stock and against another plan: predicted, part by part.

Every figure is a sum of what plans measured, so that a step is predicted and never measured. Parts that nobody measured
are left out on all sides and named: what is compared is what is known of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import models
from megatune_kernels.projection.shapes import TENSOR_SIZES
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import total
from megatune_planner.serving.step import StepPart
from megatune_planner.serving.step import has_router_front
from megatune_planner.serving.step import step

OWN = ("projection", "reduction", "experts", "router_front")
"""Operators whose launches make up the part of a step that a plan decides."""


@dataclass(frozen=True)
class Deployment:
    """A model on so many ranks."""

    model: Model
    tensor: int
    """Ranks."""
    known: int
    """Parts of its step that the plan decides."""

    @property
    def name(self) -> str:
        return f"{self.model.name} on {self.tensor} rank{'' if self.tensor == 1 else 's'}"


@dataclass(frozen=True)
class PartTimes:
    """One kind of launch of a step, µs of all its launches."""

    name: str
    launches: int
    """In one step."""
    stock_us: Bounds
    before_us: Bounds
    """With the other plan; that of stock where it says nothing, or there is none."""
    after_us: Bounds
    """With the plan; that of stock where it says nothing."""
    provenance: str
    how: str


@dataclass(frozen=True)
class StepTimes:
    """What is known of a step of so many tokens."""

    tokens: int
    parts: tuple[PartTimes, ...]
    missing: tuple[str, ...]
    """Parts without a figure."""

    @property
    def stock_us(self) -> Bounds:
        return total(part.stock_us for part in self.parts)

    @property
    def before_us(self) -> Bounds:
        return total(part.before_us for part in self.parts)

    @property
    def after_us(self) -> Bounds:
        return total(part.after_us for part in self.parts)

    @property
    def saved_of_stock_us(self) -> Bounds:
        """By the plan; below 0 where it is slower."""
        return _saved((part.stock_us, part.after_us) for part in self.parts)

    @property
    def saved_us(self) -> Bounds:
        """By the plan of the other plan's time; below 0 where it is slower."""
        return _saved((part.before_us, part.after_us) for part in self.parts)


@dataclass(frozen=True)
class ExpectedStep:
    """Means over numbers of tokens, µs."""

    stock_us: Bounds
    before_us: Bounds
    after_us: Bounds
    saved_of_stock_us: Bounds
    saved_us: Bounds


def deployments(plan: Plan) -> list[Deployment]:
    """The models and numbers of ranks whose step the plan says something of, the most parts first."""
    gate = plan.content.gate
    wanted = None if gate.model is None else gate.model.casefold()
    tokens = min(_measured(plan), default=1)
    found = []
    for name, model in models().items():
        if wanted is not None and name.casefold() != wanted:
            continue
        for tensor in gate.worlds or TENSOR_SIZES:
            try:
                front = has_router_front(model, plan, tensor)
                parts = step(model, plan, tensor, tokens, packed=front).parts
            except MegatuneError:
                # The ranks do not divide the model, or its description lacks a figure.
                continue
            known = sum(part.plan_us is not None and part.provenance != "imported" for part in parts)
            if known:
                found.append(Deployment(model, tensor, known))
    return sorted(found, key=lambda each: (-each.known, each.model.name, each.tensor))


def predicted_steps(plan: Plan, before: Plan | None, of: Deployment) -> tuple[StepTimes, ...]:
    """At each number of tokens that the plan measured, ascending.

    :param before: the plan that is compared with; None: stock.
    """
    found = []
    # All sides consist of the same launches: where one plan has the router front, the others have its stock.
    front = any(each is not None and has_router_front(of.model, each, of.tensor) for each in (plan, before))
    for tokens in sorted(_measured(plan)):
        after, earlier = (
            step(of.model, each or plan, of.tensor, tokens, packed=front, router_front=front).parts
            for each in (plan, before)
        )
        times, missing = [], []
        for part, other in zip(after, earlier, strict=True):
            joined = _joined(part, other, stock_only=before is None)
            if joined is None:
                missing.append(part.name)
            else:
                times.append(joined)
        if any(part.provenance != "imported" for part in times):
            found.append(StepTimes(tokens, tuple(times), tuple(missing)))
    return tuple(found)


def expected(steps: Iterable[StepTimes], traffic: Mapping[str, float]) -> ExpectedStep | None:
    """The mean step over the tokens, weighed by the traffic; None where none of them has any.

    :param traffic: of a plan, counts by tokens; empty: all tokens are as frequent.
    """
    weighed = [(traffic.get(str(each.tokens), 0.0) if traffic else 1.0, each) for each in steps]
    whole = sum(weight for weight, _ in weighed)
    if not whole:
        return None

    def mean(figure: Callable[[StepTimes], Bounds]) -> Bounds:
        return total(figure(each) * (weight / whole) for weight, each in weighed)

    return ExpectedStep(
        mean(lambda each: each.stock_us),
        mean(lambda each: each.before_us),
        mean(lambda each: each.after_us),
        mean(lambda each: each.saved_of_stock_us),
        mean(lambda each: each.saved_us),
    )


def _measured(plan: Plan) -> set[int]:
    return {
        point.tokens
        for operator in plan.content.operators
        if operator.name in OWN
        for shape in operator.shapes
        for band in shape.bands
        for point in band.points
    }


def _saved(pairs: Iterable[tuple[Bounds, Bounds]]) -> Bounds:
    # What is the same on both sides saves nothing, however little is known of it.
    return total(Bounds(old.low - new.high, old.high - new.low) for old, new in pairs if old != new)


def _joined(part: StepPart, other: StepPart, *, stock_only: bool) -> PartTimes | None:
    """One part on all sides. Where only one plan measured it, its stock serves in the other, whatever was published."""
    imported = (part.provenance == Provenance.IMPORTED, other.provenance == Provenance.IMPORTED)
    if imported == (False, True) and part.plan_us is not None:
        other = replace(other, stock_us=None, plan_us=None)
    if imported == (True, False) and other.plan_us is not None:
        part = replace(part, stock_us=None, plan_us=None)
    stock = part.stock_us or other.stock_us
    if stock is None:
        return None
    said = part if part.plan_us is not None else other
    return PartTimes(
        name=part.name,
        launches=part.launches,
        stock_us=stock,
        before_us=stock if stock_only else other.plan_us or stock,
        after_us=part.plan_us or stock,
        provenance=said.provenance,
        how=said.how,
    )
