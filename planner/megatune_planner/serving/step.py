"""The latency of a decode step: what the plan measured times how often a step launches it, against stock.

A step is the sum of its parts. A projection's or reduction's part comes from the plan: measured at a number of tokens
that was measured, predicted between two of them, and missing outside. So do the routed experts where the plan has
them; where not, they come from published figures of the same part, if there are any. Stock of the experts is what is
faster of the plan's baseline and these figures, because a plain baseline is not what serves. What is left nobody
measured: it is missing by name, unless it is given with a source, or an end-to-end measurement of stock
(``Given.stock_step``) covers all of it: then only the difference between plan and stock is modelled. A step with
something missing has no upper end, and no rate is claimed for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.operator import operators
from megatune_kernels.projection.shapes import projection_shapes
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.reader import shape_of
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import hull
from megatune_planner.serving.bounds import total
from megatune_planner.serving.published import MEMORY_GBPS
from megatune_planner.serving.published import published_experts
from megatune_planner.serving.weights import touched_share
from megatune_planner.serving.weights import weights

CONTEXT_EXCHANGE = "context exchange"
"""What ranks that share a sequence's cache out send one another behind each attention."""

PROJECTIONS = ("projection", "vllm-skinny-gemm")
"""Operators that are a projection, those of kernels that also serve many tokens first."""

INCLUDED = "between launches: in the figures of operators, whose samples are graphs of many launches"


@dataclass(frozen=True)
class Given:
    """What somebody measured besides the plan, µs a step by part and by tokens, and where it is from."""

    parts: Mapping[str, Mapping[int, Bounds]] = field(default_factory=dict)
    stock_step: Mapping[int, Bounds] = field(default_factory=dict)
    """Of the whole step, stock serving, by tokens."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By part; ``step`` for the whole."""


@dataclass(frozen=True)
class StepPart:
    """One kind of launch of a step."""

    name: str
    launches: int
    """In one step."""
    stock_us: Bounds | None
    """Of the whole step; None: missing."""
    plan_us: Bounds | None
    """The same with the plan; that of stock where the plan says nothing."""
    provenance: str
    """``measured``, ``predicted``, ``imported``, …; ``missing`` where there is no figure."""
    how: str


@dataclass(frozen=True)
class Step:
    """A step of so many tokens."""

    tokens: int
    parts: tuple[StepPart, ...]
    floor_us: float | None
    """What reading the weights takes at the memory's bandwidth; None for a part whose bandwidth is not known."""
    plan_us: Bounds | None
    """With the plan; None where something is missing."""
    stock_us: Bounds | None
    provenance: str
    """Of ``plan_us``: ``predicted``, as every sum of parts is; ``missing`` where there is none."""

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.plan_us is None)

    @property
    def least_us(self) -> float:
        """No step with this plan is faster: what is known of it, and no less than reading the weights takes."""
        known = sum(part.plan_us.low for part in self.parts if part.plan_us is not None)
        return max(known, self.floor_us or 0, self.plan_us.low if self.plan_us else 0)

    @property
    def rate(self) -> Bounds | None:
        """Tokens a second of one user."""
        return None if self.plan_us is None else Bounds(1e6 / self.plan_us.high, 1e6 / self.plan_us.low)

    @property
    def gain(self) -> Bounds | None:
        """Share of stock's time that the plan saves, from what the plan measured alone where the rest is missing."""
        if self.plan_us is None or self.stock_us is None:
            return None
        saved = saved_us(self.parts)
        return Bounds(saved.low / self.stock_us.high, saved.high / self.stock_us.low)


def step(
    model: Model,
    plan: Plan,
    tensor: int,
    tokens: int,
    *,
    packed: bool = False,
    given: Given | None = None,
    context_ranks: int = 1,
    router_front: bool | None = None,
) -> Step:
    """The step of a model at so many tokens.

    :param tensor: ranks.
    :param context_ranks: ranks that share a sequence's cache out: what each found is exchanged in every such layer.
    :param packed: whether the runtime runs the packed projection in front of the experts.
    :param router_front: whether a launch of the router front takes the place of that projection and of the choice of
        experts; None: where the plan has one.
    :raises MegatuneError: naming figures that the model's description lacks, or that the ranks do not divide.
    """
    if tokens < 1:
        raise MegatuneError(f"a step of {tokens} tokens: it has at least 1")
    found = [
        *_projections(model, plan, tensor, tokens, packed),
        *_reductions(model, plan, tensor, tokens),
        _experts(model, plan, tensor, tokens),
        *_others(model, context_ranks),
    ]
    given = given or Given()
    names = [part.name for part in found]
    router = _router(model, plan, tensor, tokens) if packed and router_front is not False else None
    if router is None and router_front:
        how = "the plan has no router front"
        router = StepPart("router front", model.moe_layers or 0, None, None, "missing", how)
    if router is not None:
        # One launch has the packed rows and the choice of experts.
        found = [router, *(part for part in found if part.name not in ("front", "routing"))]
        names.insert(0, router.name)
    # What a router front replaces may be given all the same: other plans that the file is for have it.
    unknown = sorted(set(given.parts) - set(names))
    if unknown:
        known = ", ".join(names)
        raise MegatuneError(f"a step of {model.name} has no part {unknown[0]!r}; it has {known}")
    parts = tuple(_given(part, given, tokens) for part in found)
    floor = floor_us(model, plan.content.gate.part, tensor, tokens)
    whole = _at(given.stock_step, tokens)
    if whole is not None:
        saved = saved_us(parts)
        # What was saved cannot be more than there was.
        with_plan = Bounds(max(whole.low - saved.high, floor or 0, 0), max(whole.high - saved.low, floor or 0))
        return Step(tokens, parts, floor, with_plan, whole, "predicted")
    if any(part.plan_us is None for part in parts):
        return Step(tokens, parts, floor, None, None, "missing")
    plan_us = total(part.plan_us for part in parts if part.plan_us)
    stock_us = total(part.stock_us for part in parts if part.stock_us)
    return Step(tokens, parts, floor, plan_us, stock_us, "predicted")


def saved_us(parts: Iterable[StepPart]) -> Bounds:
    """What the plan saves of a step: at least nothing, since it says stock where nothing won."""
    low = high = 0.0
    for part in parts:
        if part.stock_us is not None and part.plan_us is not None and part.stock_us != part.plan_us:
            low += max(0.0, part.stock_us.low - part.plan_us.high)
            high += max(0.0, part.stock_us.high - part.plan_us.low)
    return Bounds(low, high)


def floor_us(model: Model, part: str, tensor: int, tokens: int) -> float | None:
    """What it takes a rank to read its weights once, and of the experts those that the tokens are expected to touch.

    A lower bound: predicted, from the bandwidth that the memory is sold with.
    """
    gbps = MEMORY_GBPS.get(part)
    if gbps is None:
        return None
    read = 0.0
    for weight in weights(model, Parallel(tensor)):
        # Where latent projections are packed a runtime reads fewer bytes of them: no lower bound without that.
        if weight.experts:
            read += weight.bytes_.low * touched_share(model, tokens)
        elif not (model.latent is not None and weight.name in ("router", "latent_down", "latent_up")):
            read += weight.read_bytes.low
    return read / gbps / 1000


def of_plan(plan: Plan, operator: str, dims: Mapping[str, int], world: int) -> ShapePlan | None:
    """What the plan has of a shape whose operands are BF16; None where it has nothing."""
    return next(iter(all_of_plan(plan, operator, dims, world, "bf16")), None)


def all_of_plan(plan: Plan, operator: str, dims: Mapping[str, int], world: int, dtype: str) -> list[ShapePlan]:
    """What the plan has of a shape, at each of its routings."""
    wanted = (shape_of(dims), world, dtype)
    return [
        shape
        for each in plan.content.operators
        if each.name == operator
        for shape in each.shapes
        if (shape.shape, shape.world, shape.dtype) == wanted
    ]


def has_router_front(model: Model, plan: Plan, tensor: int) -> bool:
    """Whether the plan has the router front of a model on so many ranks."""
    return bool(_router_fronts(model, plan, tensor))


def has_redundant_front(model: Model, plan: Plan, tensor: int) -> bool:
    """Whether each rank computes all logits anywhere in that router front, and so holds all of the router packed."""
    return any(
        band.decision.kind == "config" and band.decision.variant == "redundant"
        for shape in _router_fronts(model, plan, tensor)
        for band in shape.bands
    )


def projection_of(plan: Plan, n: int, k: int) -> ShapePlan | None:
    """What the plan has of a projection, by whichever operator; None where it has nothing."""
    found = (of_plan(plan, operator, {"n": n, "k": k}, 1) for operator in PROJECTIONS)
    return next((shape for shape in found if shape is not None), None)


def _projections(model: Model, plan: Plan, tensor: int, tokens: int, packed: bool) -> Iterator[StepPart]:
    for shape in projection_shapes(model, Parallel(tensor)):
        if shape.name == "front" and not packed:
            continue
        if shape.name == "latent_down" and packed:
            continue
        found = projection_of(plan, shape.n, shape.k)
        yield _planned(shape.name, shape.layers, found, tokens, f"projection {shape.n}x{shape.k}")


def _reductions(model: Model, plan: Plan, tensor: int, tokens: int) -> Iterator[StepPart]:
    """One behind every output projection and one behind every MLP; experts that work in a latent sum there."""
    if tensor == 1:
        return
    attention = model.attention
    mixers = sum(each or 0 for each in (attention.full_layers, attention.linear_layers, attention.mamba_layers))
    moe, dense = model.moe_layers or 0, model.dense_layers or 0
    counts = {model.hidden: mixers + dense + (0 if model.latent else moe)}
    if model.latent:
        counts[model.latent] = moe
    for width, launches in counts.items():
        found = of_plan(plan, "reduction", {"width": width}, tensor)
        yield _planned(f"reduction {width}", launches, found, tokens, f"reduction of width {width} over {tensor}")


def _router_fronts(model: Model, plan: Plan, tensor: int) -> list[ShapePlan]:
    """What the plan has of the router front: as ranks run it together, and as each runs it alone."""
    if model.latent is None or model.latent % tensor:
        return []
    dims = {"experts": model.experts, "k": model.hidden, "latent": model.latent // tensor, "top": model.top_k}
    found = (of_plan(plan, "router_front", dims, world) for world in dict.fromkeys((tensor, 1)))
    return [shape for shape in found if shape is not None]


def _router(model: Model, plan: Plan, tensor: int, tokens: int) -> StepPart | None:
    """Of a plan that has the router front: as ranks run it together, else as each runs it alone; there, at these tokens
    where it has them."""
    parts = [
        _planned("router front", model.moe_layers or 0, shape, tokens, f"router front over {shape.world}")
        for shape in _router_fronts(model, plan, tensor)
    ]
    known = next((part for part in parts if part.plan_us is not None), None)
    if known is None:
        return parts[0] if parts else None
    return replace(known, how=f"{known.how}; stock is a plain path of torch's, which servers do not run as it is")


def _planned(name: str, launches: int, shape: ShapePlan | None, tokens: int, what: str) -> StepPart:
    if shape is None:
        return StepPart(name, launches, None, None, "missing", f"the plan has no {what}")
    points = sorted((point for band in shape.bands for point in band.points), key=lambda point: point.tokens)
    if any(Provenance.EMULATED in point.provenance for point in points):
        # They have no links, and what stands in for stock there is a variant.
        return StepPart(name, launches, None, None, "missing", f"{what}: measured on ranks that share a GPU alone")
    chosen = {p.tokens: Bounds(p.latency.low_us, p.latency.high_us) for p in points}
    stock = {p.tokens: Bounds(p.baseline_latency.low_us, p.baseline_latency.high_us) for p in points}
    plan_us, stock_us = _at(chosen, tokens), _at(stock, tokens)
    if plan_us is None or stock_us is None:
        span = f"{points[0].tokens} to {points[-1].tokens}" if points else "no"
        return StepPart(name, launches, None, None, "missing", f"{what}: measured at {span} tokens, not at {tokens}")
    exact = next((point for point in points if point.tokens == tokens), None)
    provenance = "+".join(exact.provenance) if exact else "predicted"
    how = f"{what}, {launches} launches" + ("" if exact else ", between measured tokens")
    return StepPart(name, launches, stock_us * launches, plan_us * launches, provenance, how)


def _experts(model: Model, plan: Plan, tensor: int, tokens: int) -> StepPart:
    """What the plan measured, over all the routings that it has; else published figures."""
    layers = model.moe_layers or 0
    published = _published_experts(model, plan.content.gate.part, tensor, tokens)
    # Dims and dtype are the operator's to say; nothing of them depends on the tokens.
    tuned = operators().get("experts")
    workloads = tuned.workloads(model, Parallel(tensor), (1,)) if tuned else []
    shapes = [
        shape for each in workloads for shape in all_of_plan(plan, "experts", dict(each.dims), each.world, each.dtype)
    ]
    known = []
    for shape in shapes:
        part = _planned("experts", layers, shape, tokens, f"experts, {routing_words(shape)}")
        if part.stock_us is not None and part.plan_us is not None:
            known.append((shape.band(tokens).decision.kind, part, part.stock_us, part.plan_us))
    if not known:
        return published
    stock = hull(stock for _, _, stock, _ in known)
    how = "; ".join(part.how for _, part, _, _ in known)
    if published.stock_us is not None and published.stock_us.high < stock.high:
        stock = published.stock_us
        how += f"; stock is as published: {published.how}"
    return StepPart(
        "experts",
        layers,
        stock,
        hull(stock if kind == "stock" else plan_us for kind, _, _, plan_us in known),
        "+".join(dict.fromkeys(part.provenance for _, part, _, _ in known)),
        how,
    )


def routing_words(shape: ShapePlan) -> str:
    """At which routing, or over which, a shape was decided."""
    return f"routing {shape.routing}" if shape.mix is None else shape.mix.text


def _published_experts(model: Model, part: str, tensor: int, tokens: int) -> StepPart:
    layers = model.moe_layers or 0
    found = published_experts(model, part, tensor)
    us = _at(found.us, tokens) if found else None
    if found is None or us is None:
        return StepPart("experts", layers, None, None, "missing", f"no published figure on {part} at {tensor} ranks")
    return StepPart("experts", layers, us * layers, us * layers, "imported", "; ".join(found.sources))


def _others(model: Model, context_ranks: int) -> Iterator[StepPart]:
    attention, moe = model.attention, model.moe_layers or 0
    counts = {
        "attention": attention.full_layers or 0,
        CONTEXT_EXCHANGE: attention.full_layers or 0 if context_ranks > 1 else 0,
        f"{attention.linear.kind} core" if attention.linear else "linear core": attention.linear_layers or 0,
        "mamba core": attention.mamba_layers or 0,
        "routing": moe,
        "norms and elementwise": model.layers or 0,
        "sampling": 1,
        "host": 1,
    }
    for name, launches in counts.items():
        if launches:
            yield StepPart(name, launches, None, None, "missing", "nobody measured it")


def _given(part: StepPart, given: Given, tokens: int) -> StepPart:
    us = _at(given.parts.get(part.name, {}), tokens)
    if us is None:
        return part
    source = given.sources.get(part.name, "given")
    if part.plan_us is not None and part.provenance != "imported":
        raise MegatuneError(f"{part.name} is in the plan, and given too: leave it out of what is given")
    return StepPart(part.name, part.launches, us, us, "imported", source)


def _at(points: Mapping[int, Bounds], tokens: int) -> Bounds | None:
    """At these tokens: as measured, or between its two neighbours with an interval that holds both; None outside."""
    if tokens in points:
        return points[tokens]
    known: Sequence[int] = sorted(points)
    index = bisect_left(known, tokens)
    if index in (0, len(known)):
        return None
    below, above = points[known[index - 1]], points[known[index]]
    return Bounds(min(below.low, above.low), max(below.high, above.high))
