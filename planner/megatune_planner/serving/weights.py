"""The weights of one rank: which there are, in which dtype, and whether the rank holds a slice or the whole.

What the catalogue leaves open is an interval, never a guess: where it does not say how weights besides the experts'
are kept, they count between the experts' dtype and BF16; where it does not say how often a scale is stored, between no
scale at all and one for every 16 elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.projection.shapes import GATED
from megatune_kernels.projection.shapes import projection_shapes
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.bounds import exactly

T = TypeVar("T")

BF16_BYTES = 2

ELEMENT_BYTES: dict[str, Bounds] = {
    "bfloat16": exactly(2),
    "mxfp4": exactly(0.5 + 1 / 32),
    "nvfp4": exactly(0.5 + 1 / 16),
    "int4": exactly(0.5 + 2 / 32),
    "fp4": Bounds(0.5, 0.5 + 1 / 16),
}
"""With the scales: MXFP4 has a byte for 32 elements, NVFP4 one for 16, INT4 two for the 32 of its group."""


@dataclass(frozen=True)
class Weight:
    """Weights of one kind that a rank holds."""

    name: str
    dtype: str
    bytes_: Bounds
    """Of this rank, all layers and scales together."""
    read_bytes: Bounds
    """Of it, what a step has to read whatever its tokens are; of experts that is the least that one token reads."""
    replicated: bool
    """Whether every rank holds the whole."""
    experts: bool = False


def element_bytes(model: Model) -> Bounds:
    """Bytes of an element of a routed expert, with its share of the scales.

    :raises MegatuneError: when the catalogue does not say how experts are kept.
    """
    dtype = model.expert_dtype
    if dtype is None:
        raise MegatuneError(f"{model.name}: the catalogue lacks expert_dtype")
    if dtype.casefold() == "fp8_e4m3":
        if model.quant_block is None:
            return Bounds(1, 1 + 4 / 16)
        rows, columns = model.quant_block
        return exactly(1 + 4 / (rows * columns))
    try:
        return ELEMENT_BYTES[dtype.casefold()]
    except KeyError:
        known = ", ".join(("fp8_e4m3", *ELEMENT_BYTES))
        raise MegatuneError(f"{model.name}: how large {dtype} experts are is not known; known are {known}") from None


def weights(model: Model, parallel: Parallel, *, packed: bool = False, redundant: bool = False) -> list[Weight]:
    """Every weight of one rank; norms, biases, other modalities and layers that predict further tokens are left out.

    :param packed: whether the runtime also prepares the packed projection in front of the experts; its prefill still
        needs what is packed.
    :param redundant: whether what is packed has the router's rows of all ranks, because each rank computes all logits.
    :raises MegatuneError: naming figures that the model's description lacks, or that the ranks do not divide.
    """
    shapes = projection_shapes(model, parallel)
    expert_bytes = element_bytes(model)
    dense_dtype, dense_bytes = _dense(model, expert_bytes)
    found = []
    for shape in shapes:
        if shape.name == "front" and not packed:
            continue
        # The vocabulary's and the router's are never quantised in a released checkpoint of the catalogue.
        plain = shape.name in ("lm_head", "router")
        each = exactly(BF16_BYTES) if plain else dense_bytes
        n = shape.n
        if shape.name == "front" and redundant:
            n = model.experts + (model.latent or 0) // parallel.tensor
        size = each * (n * shape.k * shape.layers)
        found.append(Weight(shape.name, "bfloat16" if plain else dense_dtype, size, size, shape.replicated))
    moe_layers = _need(model, model.moe_layers, "moe_layers")
    if model.latent is not None:
        size = exactly(BF16_BYTES * model.experts * model.hidden * moe_layers)
        found.append(Weight("router", "bfloat16", size, exactly(0) if packed else size, replicated=True))
    if model.attention.kind == "compressed_mqa":
        found.append(_grouped_output(model, parallel, dense_dtype, dense_bytes))
    vocab = _need(model, model.vocab, "vocab")
    # A step reads one row of the embedding for each token: nothing beside the rest.
    rows = exactly(BF16_BYTES * vocab * model.hidden / parallel.tensor)
    found.append(Weight("embedding", "bfloat16", rows, exactly(0), replicated=False))
    found.append(_experts(model, parallel, expert_bytes, moe_layers))
    return found


def touched_share(model: Model, tokens: int) -> float:
    """Expected share of a layer's experts that a step of so many tokens reads, where every expert is as likely."""
    return float(1 - (1 - model.top_k / model.experts) ** tokens)


def _grouped_output(model: Model, parallel: Parallel, dtype: str, each: Bounds) -> Weight:
    """The first half of a grouped output projection, which is a batched GEMM and no projection."""
    attention = model.attention
    heads, dim = (
        _need(model, attention.heads, "attention.heads"),
        _need(model, attention.head_dim, "attention.head_dim"),
    )
    rank = _need(model, attention.o_lora_rank, "attention.o_lora_rank")
    layers = _need(model, attention.full_layers, "attention.full_layers")
    size = each * (heads // parallel.tensor * dim * rank * layers)
    return Weight("o_a", dtype, size, size, replicated=False)


def _experts(model: Model, parallel: Parallel, each: Bounds, layers: int) -> Weight:
    width = _need(model, model.moe_intermediate, "moe_intermediate")
    gated = GATED[_need(model, model.activation, "activation")]
    if width % parallel.tensor:
        raise MegatuneError(
            f"{model.name}: the experts' width ({width}) cannot be split over {parallel.tensor} ranks; take a size "
            "that divides it"
        )
    elements = (3 if gated else 2) * width // parallel.tensor * (model.latent or model.hidden) * layers
    return Weight(
        name="experts",
        dtype=model.expert_dtype or "",
        bytes_=each * (model.experts * elements),
        read_bytes=each * (model.top_k * elements),
        replicated=False,
        experts=True,
    )


def _dense(model: Model, expert_bytes: Bounds) -> tuple[str, Bounds]:
    if (model.dense_dtype or model.expert_dtype) == "bfloat16":
        return "bfloat16", exactly(BF16_BYTES)
    return f"{model.expert_dtype} to bfloat16", Bounds(expert_bytes.low, BF16_BYTES)


def _need(model: Model, value: T | None, name: str) -> T:
    if value is None:
        raise MegatuneError(f"{model.name}: the catalogue lacks {name}")
    return value
