"""From a service level to a plan and the way to serve it, or to what keeps every plan from meeting it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Literal

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.projection.shapes import TENSOR_SIZES
from megatune_kernels.projection.shapes import projection_shapes
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.configuration import SPECIALIZED_ARCHITECTURES
from megatune_planner.serving.configuration import SPECIALIZED_MODEL
from megatune_planner.serving.configuration import SPECIALIZED_WORLDS
from megatune_planner.serving.configuration import Level
from megatune_planner.serving.configuration import Served
from megatune_planner.serving.configuration import capture_sizes
from megatune_planner.serving.memory import GIB
from megatune_planner.serving.memory import Layout
from megatune_planner.serving.memory import Memory
from megatune_planner.serving.memory import memory
from megatune_planner.serving.step import CONTEXT_EXCHANGE
from megatune_planner.serving.step import Given
from megatune_planner.serving.step import Step
from megatune_planner.serving.step import has_redundant_front
from megatune_planner.serving.step import has_router_front
from megatune_planner.serving.step import projection_of
from megatune_planner.serving.step import step
from megatune_planner.serving.traffic import Traffic

MULTI_NODE = "multi_node"
"""What a gate calls ranks on several nodes."""

Limit = Literal["memory", "latency", "no data"]


class LevelNotMet(MegatuneError):
    """No plan meets the service level: what binds, and the nearest that is feasible."""

    exit_code = 3


@dataclass(frozen=True)
class Option:
    """One plan in one layout, against a level."""

    plan: Plan
    model: Model
    level: Level
    layout: Layout
    given: Given | None = None

    @cached_property
    def memory(self) -> Memory:
        return self._memory(self.layout)

    @cached_property
    def step(self) -> Step:
        """Of all sequences at once, padded to the graph that runs it."""
        return self.step_of(self.layout.sequences)

    def step_of(self, tokens: int) -> Step:
        sizes, _ = capture_sizes(self.plan, self.layout.tensor, max(tokens, self.level.concurrency))
        padded = min(size for size in sizes if size >= tokens)
        return step(
            self.model,
            self.plan,
            self.layout.tensor,
            padded,
            packed=self.packed,
            given=self._given,
            context_ranks=self.layout.context_ranks,
        )

    @property
    def _given(self) -> Given | None:
        """What was given, without what only ranks that share the cache out have."""
        if self.given is None or self.layout.context_ranks > 1:
            return self.given
        parts = {name: points for name, points in self.given.parts.items() if name != CONTEXT_EXCHANGE}
        return replace(self.given, parts=parts)

    @cached_property
    def packed(self) -> bool:
        """Whether the router and the latent's rows are one matrix: vLLM's specialised decode packs them, and a router
        front reads them so."""
        specialized = (
            self.model.name == SPECIALIZED_MODEL
            and self.plan.content.gate.arch in SPECIALIZED_ARCHITECTURES
            and self.layout.tensor in SPECIALIZED_WORLDS
        )
        return specialized or has_router_front(self.model, self.plan, self.layout.tensor)

    @property
    def limit(self) -> Limit | None:
        """What keeps it from the level; None: it meets it, at the slow end of the interval."""
        allowed = 1e6 / self.level.rate
        if not self.memory.fits:
            return "memory"
        if self.step.least_us > allowed:
            return "latency"
        if self.step.plan_us is None:
            return "no data"
        return "latency" if self.step.plan_us.high > allowed else None

    @property
    def reason(self) -> str:
        """The limit in words."""
        where = f"{self.plan.content.name} ({self.plan.digest}) at {self.layout.tensor} ranks"
        allowed = 1e6 / self.level.rate
        match self.limit:
            case "memory":
                held, budget = self.memory.bytes_.high / GIB, self.memory.budget_bytes / GIB
                return f"{where}: a rank holds up to {held:.1f} GiB, and has {budget:.1f} GiB"
            case "latency":
                at_least = self.step.plan_us.high if self.step.plan_us else self.step.least_us
                kind = "up to" if self.step.plan_us else "at least"
                return f"{where}: a step takes {kind} {at_least:.0f} µs, and may take {allowed:.0f} µs"
            case "no data":
                return f"{where}: nobody measured {', '.join(self.step.missing)} at {self.step.tokens} tokens"
        return f"{where}: meets the level"

    def expected_us(self, traffic: Traffic | None) -> Bounds | None:
        """Mean step over the traffic, its steps beyond the level's concurrency as that; None where data is missing."""
        counts = traffic.counts if traffic else {self.level.concurrency: 1.0}
        low = high = 0.0
        for tokens, count in counts.items():
            found = self.step_of(min(tokens, self.level.concurrency)).plan_us
            if found is None:
                return None
            low, high = low + count * found.low, high + count * found.high
        steps = sum(counts.values())
        return Bounds(low / steps, high / steps)

    def served(self, traffic: Traffic | None) -> Served:
        more = self._memory(replace(self.layout, sequences=self.layout.sequences + 1)).bytes_.high
        rate = self.step.rate
        return Served(
            model=self.model.name,
            level=self.level,
            layout=self.layout,
            memory=self.memory,
            spare_bytes=self.memory.budget_bytes - self.memory.bytes_.high,
            context_bytes=more - self.memory.bytes_.high,
            rate="no rate is known" if rate is None else f"{rate.low:.1f} to {rate.high:.1f} tokens a second each",
            traffic=traffic,
        )

    def _memory(self, layout: Layout) -> Memory:
        hardware = self.plan.content.target.hardware
        return memory(
            self.model,
            layout,
            gpu_bytes=int(hardware["memory_bytes"]),
            head_room=self.level.head_room,
            plan=self.plan,
            packed=self.packed,
            redundant=has_redundant_front(self.model, self.plan, self.layout.tensor),
        )


def options(
    plan: Plan, model: Model, level: Level, ranks: int | None, given: Given | None, nodes: int = 1
) -> Iterator[Option]:
    """A plan's ways to be served: its worlds, and the cache whole on every rank or shared out over all of them.

    :param nodes: hosts that the ranks are on.
    :raises MegatuneError: when the plan does not hold for the model, the ranks or the nodes, or figures are missing.
    """
    if nodes > 1 and MULTI_NODE not in plan.content.gate.features:
        raise MegatuneError(
            f"{plan.content.name} does not hold over several nodes: every answer there would be stock; where its "
            f"measurements hold there too, plan with --accept {MULTI_NODE}"
        )
    tensors = _tensors(plan, model, ranks)
    for tensor in [each for each in tensors if each % nodes == 0] or tensors:
        layouts = [1]
        if tensor > 1 and model.attention.kind == "mla" and "context_parallel" in plan.content.gate.features:
            layouts.append(tensor)
        for context_ranks in layouts:
            layout = Layout(tensor, context_ranks, level.concurrency, level.context, nodes)
            yield Option(plan, model, level, layout, given)


def choose(found: Sequence[Option], traffic: Traffic | None = None) -> Option:
    """The option that meets the level with the fewest ranks, and of those the fastest over the traffic.

    :raises LevelNotMet: when none does.
    """
    meeting = [option for option in found if option.limit is None]
    if meeting:
        return min(meeting, key=lambda each: (each.layout.tensor, each.layout.context_ranks, _expected(each, traffic)))
    raise LevelNotMet(f"no plan meets the level; {binding(found)}; {nearest_words(found)}")


def binding(found: Sequence[Option]) -> str:
    """The limit of the option that comes nearest: one without data before one that is too slow or too large."""
    order: dict[Limit | None, int] = {"no data": 0, "latency": 1, "memory": 2}
    option = min(found, key=lambda each: (order[each.limit], -each.layout.tensor))
    return f"bound by {option.limit}: {option.reason}"


def nearest(found: Sequence[Option]) -> Option | None:
    """The feasible option that comes nearest: as many sequences as possible at the level's rate, else the fastest that
    fits and has data; None where there is none at all."""
    fewer = [each for option in found if (each := _fewer(option)) is not None]
    if fewer:
        return max(fewer, key=lambda each: (each.layout.sequences, -each.layout.tensor))
    slower = [each for option in found if (each := _slower(option)) is not None]
    return max(slower, key=lambda each: (each.layout.sequences, each.level.rate), default=None)


def nearest_words(found: Sequence[Option]) -> str:
    option = nearest(found)
    if option is None:
        return "none of them is feasible with fewer sequences or at a lower rate either, as far as is known"
    return (
        f"nearest feasible: {option.plan.content.name} ({option.plan.digest}) at {option.layout.tensor} ranks with "
        f"{option.layout.sequences} sequences at {option.level.rate:.1f} tokens a second each"
    )


def _fewer(option: Option) -> Option | None:
    for sequences in _fewer_sequences(option):
        each = _with(option, sequences, option.level.rate)
        if each.limit is None:
            return each
    return None


def _slower(option: Option) -> Option | None:
    for sequences in (option.level.concurrency, *_fewer_sequences(option)):
        each = _with(option, sequences, option.level.rate)
        rate = each.step.rate if each.memory.fits else None
        if rate is not None:
            return _with(option, sequences, rate.low)
    return None


def _fewer_sequences(option: Option) -> list[int]:
    """Those that fill a graph, and the most that fit, descending."""
    sizes, _ = capture_sizes(option.plan, option.layout.tensor, option.level.concurrency)
    low, high = 0, option.level.concurrency
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _with(option, middle, option.level.rate).memory.fits else (low, middle - 1)
    return sorted({size for size in (*sizes, low) if 0 < size <= low and size < option.level.concurrency}, reverse=True)


def _with(option: Option, sequences: int, rate: float) -> Option:
    level = replace(option.level, concurrency=sequences, rate=rate)
    return replace(option, level=level, layout=replace(option.layout, sequences=sequences))


def _expected(option: Option, traffic: Traffic | None) -> float:
    found = option.expected_us(traffic)
    return float("inf") if found is None else found.high


def _tensors(plan: Plan, model: Model, ranks: int | None) -> list[int]:
    gate = plan.content.gate
    if gate.model is not None and gate.model.casefold() != model.name.casefold():
        raise MegatuneError(f"{plan.content.name} holds for {gate.model}, and not for {model.name}")
    if ranks is not None:
        if gate.worlds and ranks not in gate.worlds:
            raise MegatuneError(f"{plan.content.name} holds for {list(gate.worlds)} ranks, and not for {ranks}")
        projection_shapes(model, Parallel(ranks))
        return [ranks]
    if gate.worlds:
        return list(gate.worlds)
    covered = {tensor: _covered(plan, model, tensor) for tensor in TENSOR_SIZES}
    most = max(covered.values())
    if not most:
        raise MegatuneError(f"{plan.content.name} has no shape of {model.name} at any number of ranks")
    return [tensor for tensor, shapes in covered.items() if shapes == most]


def _covered(plan: Plan, model: Model, tensor: int) -> int:
    """How many of the model's shapes the plan has at so many ranks."""
    try:
        shapes = {(shape.n, shape.k) for shape in projection_shapes(model, Parallel(tensor))}
    except MegatuneError as error:
        if "cannot be split" in str(error):
            return 0
        raise
    return sum(projection_of(plan, n, k) is not None for n, k in shapes)
