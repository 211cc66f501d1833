"""A table of the sequence-parallel collectives that Kimi K3 has in SGLang 0.5.23, as a strict schema.

A package that wraps these kernels as operators ``reduce_scatter`` and ``all_gather`` is exported where it keeps to
this: dim ``width`` (elements of a token), tokens of all ranks together, configs of the variants and parameters below,
and ``nccl`` among its baselines, which is what SGLang runs without a table.
"""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import Field
from pydantic import TypeAdapter
from pydantic import ValidationError

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import UseConfig
from megatune_planner.band_schema import UseStock
from megatune_planner.schema import Part

STOCK = "nccl"

MAX_PULL_BLOCKS = 96
"""Blocks that SGLang's kernels for pulling, and for writing directly, can synchronise at 4, 8 and 16 ranks."""


class Push(Part):
    """Ranks write into one another's slots, then reduce or copy locally."""

    strategy: Literal["push"]
    """Which this is."""
    num_blocks: Annotated[int, Field(ge=1)]
    """Of the grid; fewer than the GPU has SMs."""
    block_size: Annotated[int, Field(ge=32, le=512, multiple_of=32)]
    """Threads."""


class Pull(Part):
    """A rank reads through the switch (reduce-scatter, ``pull``) or writes through it (all-gather, ``direct``)."""

    strategy: Literal["pull", "direct"]
    """Which this is."""
    num_blocks: Annotated[int, Field(ge=1, le=MAX_PULL_BLOCKS)]
    """Of the grid."""
    block_size: Annotated[int, Field(ge=32, le=1024, multiple_of=32)]
    """Threads."""


class Nccl(Part):
    """Stock."""

    strategy: Literal["nccl"] = "nccl"
    """Which this is."""


Row = Annotated[Push | Pull | Nccl, Field(discriminator="strategy")]

STRATEGIES = {"reduce_scatter": ("push", "pull"), "all_gather": ("push", "direct")}
"""By collective, what its kernels can do. Pushing needs slots that hold a shard, the other does not."""

_ROW: TypeAdapter[Push | Pull | Nccl] = TypeAdapter(Row)


def row_of(collective: str, decision: UseConfig | UseStock, sms: int) -> Push | Pull | Nccl:
    """The row that says the decision.

    :param sms: of the GPU.
    :raises MegatuneError: when there is none.
    """
    if decision.kind == "stock":
        if decision.baseline not in (None, STOCK):
            raise MegatuneError(f"stock is {decision.baseline} there, and a table can fall back to {STOCK} alone")
        return Nccl()
    if decision.variant not in STRATEGIES[collective]:
        known = " and ".join(STRATEGIES[collective])
        raise MegatuneError(f"SGLang's {collective} can {known}, and {decision.variant} is neither")
    value: dict[str, Any] = {"strategy": decision.variant, **decision.params}
    try:
        row = _ROW.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise MegatuneError(f"{decision.variant}: {first['loc'][-1]}: {first['msg']}") from None
    if isinstance(row, Push) and row.num_blocks >= sms:
        raise MegatuneError(
            f"SGLang pushes with fewer blocks than the GPU's {sms} SMs, and the config has {row.num_blocks}"
        )
    return row
