"""The file that the exporter ``vllm-specialized-decode`` writes, as a strict schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part

TableTokens = Annotated[int, Field(ge=1, le=batch_table.MAX_BATCH)]

Source = Literal["band", "faster_variant", "neighbours", "shipped", "unheeded"]
"""What decides: a band of the plan; the faster of the two variants, where the plan says stock and the runtime has none;
the measured tokens on both sides; vLLM's own table, where the plan says nothing that the runtime could run; or vLLM,
which does not look into the table there."""

PrefetchSource = Literal["measured", "neighbours", "shipped"]
"""What decides: all measured chains; the measured tokens on both sides; or vLLM's own table."""


class Stretch(Part):
    """Neighbouring tokens that are decided alike for the same reason."""

    tokens_lo: TableTokens
    """First tokens inside."""
    tokens_hi: TableTokens
    """Last tokens inside."""
    two_stage: bool
    """Whether the reduction is two-stage; otherwise full fan-out."""
    source: Source
    """What decides."""
    reason: str
    """Why, in one line."""
    measured: tuple[TableTokens, ...]
    """Tokens inside that were measured."""
    provenance: tuple[Provenance, ...]
    """Of the evidence; none where vLLM's own table decides."""
    evidence: tuple[MeasurementId, ...]
    """Of the measured tokens inside."""


class Table(Part):
    """One entry of a ``TWOSHOT`` dict."""

    module: str
    """That holds the dict."""
    name: Literal["TWOSHOT"] = "TWOSHOT"
    """Of the dict, keyed by ranks."""
    world: Literal[8, 16]
    """The key."""
    width: Literal[3584, 7168]
    """Elements of one token's partial."""
    value: str
    """In the runtime's grammar: the tokens whose reduction is two-stage."""
    shipped: str
    """What vLLM has there itself."""
    stretches: Annotated[tuple[Stretch, ...], Field(min_length=1)]
    """Every number of tokens up to the last once, ascending."""
    warnings: tuple[str, ...]
    """What to know of this table."""

    @model_validator(mode="after")
    def _says_what_was_decided(self) -> Self:
        _check_says(self.value, [(each.tokens_lo, each.tokens_hi, int(each.two_stage)) for each in self.stretches])
        return self


class PrefetchStretch(Part):
    """Neighbouring tokens at which the same is prefetched for the same reason."""

    tokens_lo: TableTokens
    """First tokens inside."""
    tokens_hi: TableTokens
    """Last tokens inside."""
    mib: Annotated[int, Field(ge=0)]
    """Depth; 0: no prefetch."""
    carveout: Annotated[int, Field(ge=0, le=100)] | None
    """Percent of an SM's L1 that the kernel wants as shared memory; None: the driver's choice."""
    source: PrefetchSource
    """What decides."""
    reason: str
    """Why, in one line."""
    measured: tuple[TableTokens, ...]
    """Tokens inside at which every chain was measured."""
    provenance: tuple[Provenance, ...]
    """Of the evidence; none where vLLM's own table decides."""
    evidence: tuple[MeasurementId, ...]
    """Of the measured tokens inside."""


class NextAttention(Part):
    """An entry of the dict ``NEXT_ATTENTION``: how many MiB of the next attention's weights are prefetched."""

    module: str
    """That holds the dict."""
    name: Literal["NEXT_ATTENTION"] = "NEXT_ATTENTION"
    """Of the dict, keyed by ranks."""
    world: Literal[8, 16]
    """The key."""
    value: str
    """In the runtime's grammar: MiB, or MiB and carve-out joined by a dot."""
    shipped: str
    """What vLLM has there itself."""
    chains: Annotated[tuple[str, ...], Field(min_length=1)]
    """Shapes of the operator ``prefetch`` that were measured for it."""
    stretches: Annotated[tuple[PrefetchStretch, ...], Field(min_length=1)]
    """Every number of tokens up to the last once, ascending."""

    @model_validator(mode="after")
    def _says_what_was_decided(self) -> Self:
        said: list[tuple[int, int, batch_table.Value]] = []
        for each in self.stretches:
            value = each.mib if each.carveout is None or not each.mib else (each.mib, each.carveout)
            said.append((each.tokens_lo, each.tokens_hi, value))
        _check_says(self.value, said)
        return self


def _check_says(text: str, stretches: Sequence[tuple[int, int, batch_table.Value]]) -> None:
    """:raises ValueError: when stretches (first and last tokens, value) do not tile the tokens, or the table does not
    say them; what is 0 it leaves out."""
    expected = 1
    meant: dict[int, batch_table.Value] = {}
    for lo, hi, value in stretches:
        if lo != expected or hi < expected:
            raise ValueError(f"stretches must tile the tokens, but one begins at {lo}")
        expected = hi + 1
        if value:
            meant |= dict.fromkeys(range(lo, expected), value)
    if expected != batch_table.MAX_BATCH + 1:
        raise ValueError(f"stretches must end at {batch_table.MAX_BATCH} tokens")
    try:
        batch_table.check(text, meant)
    except MegatuneError as error:
        raise ValueError(str(error)) from error


class Tables(Part):
    """The whole file."""

    format: Literal["megatune-vllm-specialized-decode"] = "megatune-vllm-specialized-decode"
    """Says what the file is."""
    schema_version: Literal[2] = 2
    """Of this file."""
    runtime: Runtime
    """What reads the tables."""
    plan: PlanSource
    """What they were made from."""
    max_batch: Literal[64] = 64
    """Larger steps take vLLM's stock path: its mailboxes end here."""
    notes: tuple[str, ...]
    """What to know before they serve."""
    tables: tuple[Table, ...]
    """Of reductions: each (module, world) once."""
    prefetch: tuple[NextAttention, ...]
    """Of weight prefetch: each world once."""
    skipped: tuple[str, ...]
    """What the plan has and no table says, each with its reason."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        every: tuple[Table | NextAttention, ...] = (*self.tables, *self.prefetch)
        keys = [(table.module, table.world) for table in every]
        if not keys:
            raise ValueError("there is no table")
        if len(set(keys)) != len(keys):
            raise ValueError("two tables have the same module and world")
        return self
