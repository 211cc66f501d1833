"""The file that the exporter ``vllm-specialized-decode`` writes, as a strict schema."""

from __future__ import annotations

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
        expected = 1
        two_stage: dict[int, batch_table.Value] = {}
        for stretch in self.stretches:
            if stretch.tokens_lo != expected or stretch.tokens_hi < expected:
                raise ValueError(f"stretches must tile the tokens, but one begins at {stretch.tokens_lo}")
            expected = stretch.tokens_hi + 1
            if stretch.two_stage:
                two_stage |= dict.fromkeys(range(stretch.tokens_lo, expected), 1)
        if expected != batch_table.MAX_BATCH + 1:
            raise ValueError(f"stretches must end at {batch_table.MAX_BATCH} tokens")
        try:
            batch_table.check(self.value, two_stage)
        except MegatuneError as error:
            raise ValueError(str(error)) from error
        return self


class Tables(Part):
    """The whole file."""

    format: Literal["megatune-vllm-specialized-decode"] = "megatune-vllm-specialized-decode"
    """Says what the file is."""
    schema_version: Literal[1] = 1
    """Of this file."""
    runtime: Runtime
    """What reads the tables."""
    plan: PlanSource
    """What they were made from."""
    max_batch: Literal[64] = 64
    """Larger steps take vLLM's stock path: its mailboxes end here."""
    notes: tuple[str, ...]
    """What to know before they serve."""
    tables: Annotated[tuple[Table, ...], Field(min_length=1)]
    """Each (module, world) once."""
    skipped: tuple[str, ...]
    """What the plan has and no table says, each with its reason."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        keys = [(table.module, table.world) for table in self.tables]
        if len(set(keys)) != len(keys):
            raise ValueError("two tables have the same module and world")
        return self
