"""The catalogue of real architectures: the figures from which the shapes of a decode step follow."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar
from typing import Literal

from megatune_kernels.errors import MegatuneError

__all__ = ["Attention", "LinearAttention", "Mamba", "Model", "Parallel", "Router", "model", "models"]


@dataclass(frozen=True, kw_only=True)
class _Figures:
    # Pydantic checks what the catalogue says, and is imported when it is read: operators name these classes on GPU
    # hosts that have no Pydantic.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Router(_Figures):
    """How tokens are sent to experts; None is not known."""

    scoring: str | None
    groups: int | None
    top_groups: int | None
    scaling: float | None


@dataclass(frozen=True, kw_only=True)
class LinearAttention(_Figures):
    """The linear-attention layers of a hybrid; dims in elements."""

    kind: Literal["kda", "gdn"]
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    convolution: int


@dataclass(frozen=True, kw_only=True)
class Mamba(_Figures):
    """The Mamba2 blocks of a hybrid; dims in elements."""

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int


@dataclass(frozen=True, kw_only=True)
class Attention(_Figures):
    """The attention of a model; dims in elements, None is not known or does not exist."""

    kind: Literal["mla", "gqa", "compressed_mqa"] | None
    """Of the full-attention layers: latent, grouped-query, or one compressed key-value head."""
    description: str
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    q_lora_rank: int | None
    kv_lora_rank: int | None
    nope_head_dim: int | None
    rope_head_dim: int | None
    v_head_dim: int | None
    o_lora_rank: int | None
    o_groups: int | None
    output_gate: bool | None
    """Whether the attention's output is multiplied by a projected gate before the output projection."""
    index_topk: int | None
    index_heads: int | None
    index_head_dim: int | None
    index_every: int | None
    """Layers that share one indexer."""
    sliding_window: int | None
    compressed_layers: tuple[tuple[int, int], ...] | None = None
    """(tokens, layers): how many layers keep one key-value entry for so many tokens of context, the layers that predict
    further tokens included; 0 tokens is a window alone."""
    full_layers: int | None
    linear_layers: int | None
    mamba_layers: int | None
    full_layers_at: tuple[int, ...] | None
    """The full-attention layers, counted from 1, where the source lists them."""
    linear: LinearAttention | None
    mamba: Mamba | None


@dataclass(frozen=True, kw_only=True)
class Model(_Figures):
    """A mixture-of-experts architecture; dims in elements, None is not known (never guessed)."""

    name: str
    hf_id: str | None
    model_type: str
    hidden: int
    layers: int | None
    dense_layers: int | None
    moe_layers: int | None
    dense_intermediate: int | None
    experts: int
    top_k: int
    shared_experts: int | None
    shared_intermediate: int | None
    """Width of all shared experts together."""
    moe_intermediate: int | None
    latent: int | None
    """Width in which the routed experts work, where it is not ``hidden``."""
    router: Router
    attention: Attention
    mtp_layers: int | None
    vocab: int | None
    max_position: int | None
    activation: str | None
    expert_dtype: str | None
    dense_dtype: str | None = None
    """Of every weight that is no routed expert's, where the source says that it differs from theirs or what it is."""
    quant_block: tuple[int, int] | None
    complete: bool
    """Whether the source states every figure of the architecture."""
    source: str
    notes: str


@dataclass(frozen=True)
class Parallel:
    """How a model is spread over ranks."""

    tensor: int
    """Ranks that hold slices of every weight."""

    def __post_init__(self) -> None:
        if self.tensor < 1:
            raise MegatuneError(f"tensor parallelism {self.tensor}: at least one rank is needed")


@dataclass(frozen=True, kw_only=True)
class _Catalogue(_Figures):
    models: tuple[Model, ...]


@cache
def models() -> dict[str, Model]:
    """Every model of the catalogue by name."""
    from pydantic import TypeAdapter

    text = files(__name__).joinpath("catalogue.json").read_bytes()
    return {found.name: found for found in TypeAdapter(_Catalogue).validate_json(text).models}


def model(name: str) -> Model:
    """The model of that name or Hugging Face id, whatever its case.

    :raises MegatuneError: when the catalogue has none, with the nearest names.
    """
    known = models()
    by_alias = {alias.casefold(): found for found in known.values() for alias in (found.name, found.hf_id) if alias}
    found = by_alias.get(name.casefold())
    if found is not None:
        return found
    near = difflib.get_close_matches(name.casefold(), by_alias, n=3)
    names = list(dict.fromkeys(by_alias[alias].name for alias in near)) or list(known)
    raise MegatuneError(
        f"no model {name!r} in the catalogue; {'did you mean' if near else 'allowed'}: {', '.join(names)}"
    )
