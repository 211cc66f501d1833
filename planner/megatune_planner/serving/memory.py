"""What a rank's memory holds while it serves: weights, recurrent state, key-value cache, workspaces and graphs.

All of it follows from the catalogue's figures and the plan; nothing is measured, so that every part is predicted, with
an interval where the catalogue leaves something open. Decisions take the upper end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Attention
from megatune_kernels.models import LinearAttention
from megatune_kernels.models import Mamba
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_planner.plan import Plan
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import exactly
from megatune_planner.serving.bounds import total
from megatune_planner.serving.weights import BF16_BYTES
from megatune_planner.serving.weights import weights

GIB = 2**30
GRAPH_BYTES = 2 * GIB
"""What a rank sets aside for graphs unless somebody measured it: an assumption, whose interval begins at nothing."""

NOT_COUNTED = (
    "norms and biases",
    "indexers of compressed attention, and what mixes residual streams",
    "encoders of other modalities",
    "layers that predict further tokens",
    "activations, communication buffers and the CUDA context: the head room has to hold them",
    "states that a prefix cache keeps besides each sequence's own",
)


@dataclass(frozen=True)
class Holding:
    """One part of a rank's memory."""

    name: str
    kind: str
    """``weights``, ``state``, ``cache``, ``workspace`` or ``graphs``."""
    bytes_: Bounds
    how: str
    """From what it follows, in one line."""


@dataclass(frozen=True)
class Memory:
    """One rank's memory against what there is."""

    holdings: tuple[Holding, ...]
    gpu_bytes: int
    """Memory of the GPU."""
    head_room: float
    """Share of it that stays free."""

    @property
    def bytes_(self) -> Bounds:
        return total(each.bytes_ for each in self.holdings)

    @property
    def budget_bytes(self) -> float:
        return self.gpu_bytes * (1 - self.head_room)

    @property
    def fits(self) -> bool:
        """Whether the upper end is within the budget."""
        return self.bytes_.high <= self.budget_bytes

    def of(self, kind: str) -> Bounds:
        return total(each.bytes_ for each in self.holdings if each.kind == kind)


@dataclass(frozen=True)
class Layout:
    """How a model is spread and what it is to hold."""

    tensor: int
    """Ranks that hold slices of every weight."""
    context_ranks: int = 1
    """Ranks that share a sequence's key-value cache out, by tokens."""
    sequences: int = 1
    """Served at once."""
    context: int = 1
    """Tokens of each of them."""
    nodes: int = 1
    """Hosts that the ranks are on, as many on each."""

    def __post_init__(self) -> None:
        for name in ("tensor", "context_ranks", "sequences", "context", "nodes"):
            if getattr(self, name) < 1:
                raise MegatuneError(f"{name.replace('_', ' ')} is {getattr(self, name)}: it has to be at least 1")
        if self.tensor % self.context_ranks:
            raise MegatuneError(
                f"context parallelism {self.context_ranks} does not divide the {self.tensor} ranks of a model"
            )
        if self.tensor % self.nodes:
            raise MegatuneError(f"{self.tensor} ranks cannot be split over {self.nodes} nodes: as many are on each")


def memory(
    model: Model,
    layout: Layout,
    *,
    gpu_bytes: int,
    head_room: float = 0.1,
    plan: Plan | None = None,
    packed: bool = False,
    redundant: bool = False,
    cache_bytes: int = BF16_BYTES,
    graphs: Bounds | None = None,
) -> Memory:
    """The memory of one rank.

    :param plan: whose configs' workspaces count.
    :param packed: as in ``weights``.
    :param redundant: as in ``weights``.
    :param cache_bytes: bytes of an element of the key-value cache.
    :param graphs: bytes of captured graphs; None: the allowance.
    :raises MegatuneError: naming figures that the model's description lacks, or that the ranks do not divide.
    """
    if not 0 <= head_room < 1:
        raise MegatuneError(f"head room {head_room} is no share of the memory: from 0 to less than 1, e.g. 0.1")
    found: list[Holding] = []
    for weight in weights(model, Parallel(layout.tensor), packed=packed, redundant=redundant):
        where = "whole on every rank" if weight.replicated else f"1/{layout.tensor} of it"
        found.append(Holding(weight.name, "weights", weight.bytes_, f"{weight.dtype}, {where}"))
    found += _states(model, layout)
    found += _cache(model, layout, cache_bytes)
    if plan is not None:
        found += _workspaces(plan, layout.tensor)
    allowance = graphs or Bounds(0, GRAPH_BYTES)
    how = "assumed: nobody measured it" if graphs is None else "given"
    found.append(Holding("graphs", "graphs", allowance, how))
    return Memory(tuple(found), gpu_bytes, head_room)


def _states(model: Model, layout: Layout) -> Iterator[Holding]:
    attention, parallel = model.attention, layout.tensor
    if attention.linear is not None and attention.linear_layers:
        size = _linear_state(attention.linear, parallel) * (attention.linear_layers * layout.sequences)
        dtype = "FP32" if attention.linear.kind == "kda" else "BF16 to FP32"
        how = f"{dtype} state and BF16 convolution, {attention.linear_layers} layers, {layout.sequences} sequences"
        yield Holding(f"{attention.linear.kind} state", "state", size, how)
    if attention.mamba is not None and attention.mamba_layers:
        size = _mamba_state(attention.mamba, parallel) * (attention.mamba_layers * layout.sequences)
        how = f"BF16 to FP32 state, {attention.mamba_layers} layers, {layout.sequences} sequences"
        yield Holding("mamba state", "state", size, how)


def _linear_state(linear: LinearAttention, ranks: int) -> Bounds:
    """Of one layer and sequence. KDA's is FP32; of others the runtime chooses."""
    elements = linear.value_heads // ranks * linear.key_head_dim * linear.value_head_dim
    channels = 2 * linear.key_heads // ranks * linear.key_head_dim + linear.value_heads // ranks * linear.value_head_dim
    window = (linear.convolution - 1) * channels * BF16_BYTES
    return Bounds((4 if linear.kind == "kda" else 2) * elements + window, 4 * elements + window)


def _mamba_state(mamba: Mamba, ranks: int) -> Bounds:
    elements = mamba.heads // ranks * mamba.head_dim * mamba.state
    channels = mamba.heads // ranks * mamba.head_dim + 2 * mamba.groups // ranks * mamba.state
    window = (mamba.convolution - 1) * channels * BF16_BYTES
    return Bounds(2 * elements + window, 4 * elements + window)


def _cache(model: Model, layout: Layout, cache_bytes: int) -> Iterator[Holding]:
    attention = model.attention
    layers = _need(model, "full_layers")
    held = -(-layout.context // layout.context_ranks)
    match attention.kind:
        case "mla":
            width = _need(model, "kv_lora_rank") + _need(model, "rope_head_dim")
            size = exactly(width * cache_bytes * layers * held * layout.sequences)
            how = f"latent of {width} elements a token, {layers} layers, whole on every rank"
            yield Holding("key-value cache", "cache", size, how + _shared(layout))
            if attention.index_topk:
                yield _index(model, layout, held)
        case "gqa":
            yield _grouped(model, layout, cache_bytes)
        case "compressed_mqa":
            yield _compressed(model, layout, cache_bytes)
        case None:
            raise MegatuneError(f"{model.name}: the catalogue lacks attention.kind")


def _index(model: Model, layout: Layout, held: int) -> Holding:
    layers = -(-_need(model, "full_layers") // max(1, _need(model, "index_every")))
    size = Bounds(1, BF16_BYTES) * (_need(model, "index_head_dim") * layers * held * layout.sequences)
    return Holding("index cache", "cache", size, f"FP8 to BF16 keys of {layers} indexers{_shared(layout)}")


def _grouped(model: Model, layout: Layout, cache_bytes: int) -> Holding:
    attention = model.attention
    dim, heads = _need(model, "head_dim"), _need(model, "kv_heads")
    if heads % layout.tensor and layout.tensor % heads:
        raise MegatuneError(
            f"{model.name}: key-value heads ({heads}) cannot be split over {layout.tensor} ranks: take a size that "
            "divides them, or that they divide"
        )
    local = max(1, heads // layout.tensor)
    if layout.context_ranks > max(1, layout.tensor // heads):
        raise MegatuneError(
            f"{model.name}: context parallelism {layout.context_ranks} needs as many ranks with the same key-value "
            f"head, and {layout.tensor} ranks over {heads} heads have {max(1, layout.tensor // heads)}"
        )
    token = local * (dim + (attention.v_head_dim or dim)) * cache_bytes * _need(model, "full_layers")
    held = -(-layout.context // layout.context_ranks)
    least = held if attention.sliding_window is None else min(held, attention.sliding_window)
    how = f"{local} key-value heads a rank, {_need(model, 'full_layers')} layers"
    if attention.sliding_window is not None:
        how += f"; how many layers keep {attention.sliding_window} tokens alone is not in the catalogue"
    return Holding("key-value cache", "cache", Bounds(least, held) * (token * layout.sequences), how)


def _compressed(model: Model, layout: Layout, cache_bytes: int) -> Holding:
    """The catalogue counts the layers of each ratio with those that predict further tokens: one more at most each."""
    attention = model.attention
    if attention.compressed_layers is None:
        raise MegatuneError(f"{model.name}: the catalogue lacks attention.compressed_layers")
    window = min(layout.context, _need(model, "sliding_window"))
    low = high = 0
    for ratio, layers in attention.compressed_layers:
        entries = -(-layout.context // ratio) if ratio else 0
        low += layers * entries
        high += layers * (entries + window)
    token = _need(model, "head_dim") * cache_bytes * layout.sequences
    ratios = ", ".join(f"1/{ratio}: {layers}" for ratio, layers in attention.compressed_layers if ratio)
    return Holding("key-value cache", "cache", Bounds(low, high) * token, f"compressed, layers {ratios}; a window each")


def _workspaces(plan: Plan, tensor: int) -> Iterator[Holding]:
    """Launches of a shape follow one another, so that its configs can share; whether shapes do is the runtime's."""
    for operator in plan.content.operators:
        sizes = [
            max((band.decision.workspace_bytes for band in shape.bands if band.decision.kind == "config"), default=0)
            for shape in operator.shapes
            if shape.world in (1, tensor)
        ]
        if any(sizes):
            how = f"the plan's configs of {sum(map(bool, sizes))} shapes, from shared to one each"
            yield Holding(f"{operator.name} workspace", "workspace", Bounds(max(sizes), sum(sizes)), how)


def _shared(layout: Layout) -> str:
    return f", tokens shared out over {layout.context_ranks}" if layout.context_ranks > 1 else ""


def _need(model: Model, name: str) -> int:
    attention: Attention = model.attention
    value: int | None = getattr(attention, name)
    if value is None:
        raise MegatuneError(f"{model.name}: the catalogue lacks attention.{name}")
    return value
