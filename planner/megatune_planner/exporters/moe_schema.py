"""What a plan of Triton's fused-MoE kernels holds, for the tables that vLLM and SGLang read of them.

A package that wraps such a kernel as an operator is exported where it keeps to this: dims ``experts`` (E, of the rank)
and ``width`` (N, the intermediate size of the rank), for weights with a scale a block also ``block_n`` and ``block_k``,
for weights with a scale a group of K ``block_k`` alone; world 1; configs of the variant ``triton_fused_moe`` with the
parameters of ``MoeConfig``; and among its baselines what the runtime runs where it has no table, by the name
``vllm_default`` or ``sglang_default``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator
from pydantic import Field
from pydantic import ValidationError

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import UseConfig
from megatune_planner.plan import ShapePlan
from megatune_planner.schema import Part

VARIANT = "triton_fused_moe"


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


Tile = Annotated[int, Field(ge=16, le=256), AfterValidator(_power_of_two)]


class MoeConfig(Part):
    """Parameters of the variant ``triton_fused_moe``, spelled as the tables spell them."""

    BLOCK_SIZE_M: Tile
    """Rows of a tile: routes of one expert."""
    BLOCK_SIZE_N: Tile
    """Columns of a tile."""
    BLOCK_SIZE_K: Annotated[int, Field(ge=16, le=512), AfterValidator(_power_of_two)]
    """Elements of K a step."""
    GROUP_SIZE_M: Annotated[int, Field(ge=1)]
    """Tiles along M that share columns while these are in L2."""
    num_warps: Annotated[int, Field(ge=1, le=16), AfterValidator(_power_of_two)]
    """Of a block."""
    num_stages: Annotated[int, Field(ge=1, le=16)]
    """Of the software pipeline."""
    SPLIT_K: Annotated[int, Field(ge=1)]
    """Blocks that share one tile's K."""
    triton_version: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){2}$")]
    """Of the Triton that compiled it, e.g. ``3.8.0``."""
    USE_TMA: bool = False
    """Whether operands come by TMA."""


@dataclass(frozen=True)
class Layer:
    """The experts of one rank, as a table is found by."""

    experts: int
    width: int
    """Intermediate size of the rank, in elements whatever they are packed into."""
    dtype: str
    block_n: int
    block_k: int
    """Elements that share a scale; 0 where a scale is not of a block."""

    @property
    def block(self) -> tuple[int, int] | None:
        """Both, where scales are of blocks in two dimensions."""
        return (self.block_n, self.block_k) if self.block_n and self.block_k else None


def is_moe(shape: ShapePlan) -> bool:
    """Whether the shape is of experts at all."""
    return {"experts", "width"} <= shape.dims.keys()


def layer_of(shape: ShapePlan) -> Layer:
    dims = shape.dims
    return Layer(dims["experts"], dims["width"], shape.dtype, dims.get("block_n", 0), dims.get("block_k", 0))


def config_of(decision: UseConfig) -> MoeConfig:
    """The decision's parameters, checked.

    :raises MegatuneError: for another variant, and for parameters that such a kernel does not have.
    """
    if decision.variant != VARIANT:
        raise MegatuneError(f"a table holds configs of the variant {VARIANT}, and {decision.variant} is none")
    try:
        return MoeConfig.model_validate(decision.params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise MegatuneError(f"{decision.variant}: {first['loc'][0]}: {first['msg']}") from None
