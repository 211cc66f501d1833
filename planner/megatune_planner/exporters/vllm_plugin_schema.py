"""``overlay.json`` in the wheel of the exporter ``vllm-plugin``, as a strict schema.

It says what changes in vLLM, and when a step is stock. The sources in ``vllm_overlay`` read it where the plan serves.
"""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.vllm_table_schema import SkinnyGemmConfig
from megatune_planner.exporters.vllm_table_schema import TableTokens
from megatune_planner.exporters.vllm_table_schema import illegal
from megatune_planner.schema import Part

BatchTokens = Annotated[int, Field(ge=1, le=batch_table.MAX_BATCH)]


class Ask(Part):
    """What the plan's reader is asked before the table changes: where it answers stock, the table stays as it is."""

    operator: str
    """Of the plan."""
    shape: str
    """The dims as a key."""
    tokens: BatchTokens
    """Where a band has a config."""
    dtype: str
    """Of the operands."""
    world: int
    """Ranks."""
    routing: str
    """How tokens are spread over experts."""
    context_tokens: int | None
    """0 where contexts are a matter of whole steps; None: the longest that the server admits."""


class Batches(Part):
    """An entry of a dict whose text says by tokens what is done."""

    kind: Literal["batches"] = "batches"
    """Which kind of table it is."""
    module: str
    """That holds the dict."""
    table: str
    """Name of the dict."""
    world: int
    """Ranks that the entry is for."""
    key: int
    """Of the entry: the ranks, or what follows from them, e.g. local heads."""
    shipped: str
    """What vLLM has there; anything else, and nothing changes."""
    value: str
    """What the plan puts there."""
    means: tuple[tuple[BatchTokens, BatchTokens, int | str | tuple[int, ...]], ...]
    """First and last tokens and the value between them: what vLLM has to read in ``value``."""
    decided: tuple[tuple[BatchTokens, BatchTokens], ...]
    """First and last tokens of what the plan decides; the rest is as vLLM ships it."""
    asks: tuple[Ask, ...]
    """What the plan must not call stock."""

    @model_validator(mode="after")
    def _means_what_it_says(self) -> Self:
        meant = {t: value for lo, hi, value in self.means for t in range(lo, hi + 1)}
        try:
            batch_table.check(self.value, meant)
        except MegatuneError as error:
            raise ValueError(str(error)) from error
        return self


class Shape(Part):
    """A projection by its local shape."""

    n: Annotated[int, Field(ge=1)]
    """Local outputs."""
    k: Annotated[int, Field(ge=1)]
    """Local inputs."""
    configs: Annotated[tuple[SkinnyGemmConfig, ...], Field(min_length=1)]
    """What runs, each at its own tokens; all other tokens stay as vLLM has them."""
    beats_dsv3: tuple[TableTokens, ...]
    """Tokens at which ``dsv3_fused_a`` was measured, and the config is faster. At all others it keeps its place where
    vLLM has it: nobody may be slower for an export."""

    @model_validator(mode="after")
    def _legal(self) -> Self:
        tokens = [config.num_rows for config in self.configs]
        if tokens != sorted(set(tokens)) or not set(self.beats_dsv3) <= set(tokens):
            raise ValueError(f"n={self.n}, k={self.k}: configs must ascend in tokens, and beat dsv3_fused_a at some")
        found = [reason for config in self.configs for reason in illegal(config, self.n, self.k)]
        if found:
            raise ValueError(f"n={self.n}, k={self.k}: {'; '.join(found)}")
        return self


class Projections(Part):
    """A dict by local (N, K) of what runs at each number of tokens."""

    kind: Literal["projections"] = "projections"
    """Which kind of table it is."""
    module: str
    """That holds the dict."""
    table: str
    """Name of the dict."""
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1)]
    """Each (N, K) once."""
    asks: tuple[Ask, ...]
    """What the plan must not call stock."""


class StockShape(Part):
    """Where stock is measured to be better at one of the shapes that a step reduces."""

    shape: str
    """The dims as a key."""
    won: tuple[tuple[int, int], ...]
    """First and last tokens of bands where stock won."""
    context_above: int | None
    """Contexts of more tokens than this have a measured error beyond its limit; None: nothing was measured of it."""
    reasons: tuple[str, ...]
    """Of each, in one line."""


class Overlay(Part):
    """The whole file."""

    format: Literal["megatune-vllm-overlay"] = "megatune-vllm-overlay"
    """Says what the file is."""
    schema_version: Literal[1] = 1
    """Of this file."""
    runtime: Runtime
    """What it changes."""
    plan: PlanSource
    """What it was made from."""
    max_batch: Literal[64] = 64
    """Larger steps never come to the specialised decode."""
    tables: tuple[Annotated[Batches | Projections, Field(discriminator="kind")], ...]
    """Each (module, table, key) once."""
    stock_steps: dict[str, tuple[StockShape, ...]]
    """By ranks: a step is stock where stock won at all of these, or where contexts may be too long for one."""
    skipped: tuple[str, ...]
    """What the plan has and the overlay does not change, each with its reason."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        places: list[tuple[Any, ...]] = [(each.module, each.table, getattr(each, "key", None)) for each in self.tables]
        if len(set(places)) != len(places):
            raise ValueError("two tables have the same module, name and key")
        if not self.tables and not self.stock_steps:
            raise ValueError("nothing would change")
        return self
