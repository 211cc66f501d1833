"""The decode GEMM shapes of one rank, derived from a model's figures.

A projection multiplies ``tokens`` rows of ``k`` elements with an ``n`` by ``k`` weight. Routed experts are not
projections: they are grouped GEMMs over a routing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import LinearAttention
from megatune_kernels.models import Mamba
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel

T = TypeVar("T")

TENSOR_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""What an error message offers where a size does not divide."""

PACKED_MULTIPLE = 16
"""Rows of weights that were packed from several are padded to this, so that a row block of the tensor cores fits."""

GATED = {"silu": True, "situ": True, "swigluoai": True, "gelu_pytorch_tanh": True, "relu2": False}
"""Whether an MLP of that activation has a gate beside its up projection."""


@dataclass(frozen=True)
class Projection:
    """One weight of a rank: ``n`` outputs by ``k`` inputs, in elements."""

    name: str
    n: int
    k: int
    layers: int
    """Layers that hold one; 1 for the projection to the vocabulary."""
    replicated: bool = False
    """Whether every rank holds the whole weight."""
    stock: bool = False
    """Whether only the path without packing runs it: ``front`` takes its place elsewhere."""


class _DivisionError(Exception):
    """A figure that cannot be spread over the ranks."""


class _Shapes:
    """Derives shapes and collects the figures that are missing on the way, so that one error names them all."""

    def __init__(self, model: Model, tensor: int) -> None:
        self.model = model
        self.tensor = tensor
        self.missing: list[str] = []

    def need(self, value: T | None, name: str, stand_in: T) -> T:
        if value is not None:
            return value
        if name not in self.missing:
            self.missing.append(name)
        return stand_in

    def figure(self, name: str) -> int:
        """The figure of that name, ``attention.`` ones included. A missing one counts as 0 until the error."""
        owner = self.model.attention if name.startswith("attention.") else self.model
        value: int | None = getattr(owner, name.removeprefix("attention."))
        return self.need(value, name, 0)

    def split(self, size: int, what: str) -> int:
        if size % self.tensor:
            raise _DivisionError(f"{what} ({size})")
        return size // self.tensor

    def heads(self) -> int:
        return self.split(self.figure("attention.heads"), "attention heads")

    def kv_heads(self) -> int:
        """Key-value heads of a rank; with more ranks than heads, several ranks hold the same head."""
        heads = self.figure("attention.kv_heads")
        if heads and self.tensor > heads and self.tensor % heads == 0:
            return 1
        return self.split(heads, "key-value heads")

    def all(self) -> Iterator[Projection]:
        model = self.model
        attention = model.attention
        if attention.linear is not None:
            yield from self.linear(attention.linear, self.figure("attention.linear_layers"))
        elif attention.linear_layers:
            self.need(attention.linear, "attention.linear", None)
        if attention.mamba_layers:
            mamba = self.need(attention.mamba, "attention.mamba", _NO_MAMBA)
            yield from self.mamba(mamba, attention.mamba_layers)
        layers = self.figure("attention.full_layers")
        match self.need(attention.kind, "attention.kind", ""):
            case "mla":
                yield from self.mla(layers)
            case "gqa":
                yield from self.gqa(layers)
            case "compressed_mqa":
                yield from self.compressed_mqa(layers)
        yield from self.mlp()
        yield Projection("lm_head", self.split(self.figure("vocab"), "vocabulary"), model.hidden, 1)

    def linear(self, linear: LinearAttention, layers: int) -> Iterator[Projection]:
        hidden = self.model.hidden
        key_heads = self.split(linear.key_heads, "linear key heads")
        value_heads = self.split(linear.value_heads, "linear value heads")
        keys, values = key_heads * linear.key_head_dim, value_heads * linear.value_head_dim
        if linear.kind == "kda":
            # Queries, keys, values and the output gate of this rank's heads, their learning rates, and the first half
            # of the decay's low-rank path, which every rank computes whole.
            rank = linear.key_head_dim
            yield Projection("kda_in_proj", _padded(2 * keys + 2 * values + rank + value_heads), hidden, layers)
            yield Projection("kda_f_b", keys, rank, layers)
        else:
            yield Projection("gdn_qkvz", 2 * keys + 2 * values, hidden, layers)
            yield Projection("gdn_ba", 2 * value_heads, hidden, layers)
        yield Projection(f"{linear.kind}_o_proj", hidden, values, layers)

    def mamba(self, mamba: Mamba, layers: int) -> Iterator[Projection]:
        heads = self.split(mamba.heads, "Mamba heads")
        groups = self.split(mamba.groups, "Mamba groups")
        inner = heads * mamba.head_dim
        yield Projection("mamba_in_proj", 2 * inner + 2 * groups * mamba.state + heads, self.model.hidden, layers)
        yield Projection("mamba_out_proj", self.model.hidden, inner, layers)

    def mla(self, layers: int) -> Iterator[Projection]:
        hidden, heads = self.model.hidden, self.heads()
        q_rank, kv_rank = self.figure("attention.q_lora_rank"), self.figure("attention.kv_lora_rank")
        rope = self.figure("attention.rope_head_dim")
        query = self.figure("attention.nope_head_dim") + rope
        values = heads * self.figure("attention.v_head_dim")
        yield Projection("fused_qkv_a", q_rank + kv_rank + rope, hidden, layers, replicated=True)
        yield Projection("q_b", heads * query, q_rank, layers)
        if self.model.attention.index_topk:
            # The indexer scores the cache for all heads at once, so no rank can hold a slice of it.
            index_heads, index_dim = self.figure("attention.index_heads"), self.figure("attention.index_head_dim")
            indexers = -(-layers // max(1, self.figure("attention.index_every")))
            yield Projection("index_q_b", index_heads * index_dim, q_rank, indexers, replicated=True)
            yield Projection("index_k", index_dim, hidden, indexers, replicated=True)
            yield Projection("index_weights", index_heads, hidden, indexers, replicated=True)
        if self.need(self.model.attention.output_gate, "attention.output_gate", False):
            yield Projection("mla_gate", values, hidden, layers)
        yield Projection("o_proj", hidden, values, layers)

    def gqa(self, layers: int) -> Iterator[Projection]:
        hidden, heads, kv_heads = self.model.hidden, self.heads(), self.kv_heads()
        dim = self.figure("attention.head_dim")
        v_dim = self.model.attention.v_head_dim or dim
        gated = self.need(self.model.attention.output_gate, "attention.output_gate", False)
        queries = (2 if gated else 1) * heads * dim
        yield Projection("qkv", queries + kv_heads * (dim + v_dim), hidden, layers)
        yield Projection("o_proj", hidden, heads * v_dim, layers)

    def compressed_mqa(self, layers: int) -> Iterator[Projection]:
        """The first half of the output projection is a batched GEMM over its groups, and no projection."""
        hidden, heads = self.model.hidden, self.heads()
        q_rank, dim = self.figure("attention.q_lora_rank"), self.figure("attention.head_dim")
        groups = self.split(self.figure("attention.o_groups"), "output groups")
        yield Projection("fused_qkv_a", q_rank + dim, hidden, layers, replicated=True)
        yield Projection("q_b", heads * dim, q_rank, layers)
        yield Projection("o_b", hidden, groups * self.figure("attention.o_lora_rank"), layers)

    def mlp(self) -> Iterator[Projection]:
        model = self.model
        hidden, dense_layers, moe_layers = model.hidden, self.figure("dense_layers"), self.figure("moe_layers")
        if dense_layers:
            yield from self.gated("dense", self.figure("dense_intermediate"), dense_layers)
        shared = self.shared_intermediate()
        if shared:
            yield from self.gated("shared", shared, moe_layers)
        if model.latent is None:
            yield Projection("router", model.experts, hidden, moe_layers, replicated=True)
            return
        # The router and the projection into the latent read the same rows: packed, they are one projection, whose
        # rows a rank shares out.
        packed = self.split(model.experts, "experts") + self.split(model.latent, "latent")
        yield Projection("front", _padded(packed), hidden, moe_layers)
        yield Projection("latent_down", model.latent, hidden, moe_layers, replicated=True, stock=True)
        yield Projection("latent_up", hidden, model.latent, moe_layers, replicated=True, stock=True)

    def shared_intermediate(self) -> int:
        """Width of the shared experts together: as stated, or as many as there are, as wide as a routed one."""
        model = self.model
        if model.shared_intermediate is not None:
            return model.shared_intermediate
        shared = self.figure("shared_experts")
        return shared * self.figure("moe_intermediate") if shared else 0

    def gated(self, name: str, width: int, layers: int) -> Iterator[Projection]:
        hidden, width = self.model.hidden, self.split(width, f"{name} width")
        if GATED[self.need(self.model.activation, "activation", "silu")]:
            yield Projection(f"{name}_gate_up", 2 * width, hidden, layers)
        else:
            yield Projection(f"{name}_up", width, hidden, layers)
        yield Projection(f"{name}_down", hidden, width, layers)


_NO_MAMBA = Mamba(heads=0, head_dim=0, state=0, groups=0, convolution=0)


def projection_shapes(model: Model, parallel: Parallel) -> list[Projection]:
    """The projections of one rank, in the order of a layer, then the dense layers' and the vocabulary's.

    Several can have the same shape.

    :raises MegatuneError: naming the figures that the model's description lacks, or, where the ranks do not divide
        a figure, the tensor parallel sizes that do.
    """
    try:
        return _derive(model, parallel.tensor)
    except _DivisionError as error:
        possible = [str(tensor) for tensor in TENSOR_SIZES if _divides(model, tensor)]
        raise MegatuneError(
            f"{model.name}: {error} cannot be split over {parallel.tensor} ranks; allowed: {', '.join(possible)}"
        ) from None


def _derive(model: Model, tensor: int) -> list[Projection]:
    shapes = _Shapes(model, tensor)
    found = list(shapes.all())
    if shapes.missing:
        raise MegatuneError(f"{model.name}: the catalogue lacks {', '.join(shapes.missing)}")
    return found


def _divides(model: Model, tensor: int) -> bool:
    try:
        _derive(model, tensor)
    except _DivisionError:
        return False
    return True


def _padded(n: int) -> int:
    return -(-n // PACKED_MULTIPLE) * PACKED_MULTIPLE
