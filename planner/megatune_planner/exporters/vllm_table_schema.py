"""The file that the exporter ``vllm-low-latency-table`` writes, as a strict schema.

Format of vLLM 0.33.0: module ``vllm.models.kimi_k3.nvidia.low_latency_gemm`` holds one table an architecture, keyed by
the local (N, K) of a BF16 projection, with an entry for each exact number of tokens from 1 to 16.
"""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_planner.band_schema import Latency
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Params
from megatune_planner.schema import Part

MAX_TOKENS = 16
MIN_GAIN = 0.05
"""Share of cuBLAS's time that an entry must save: the rule of the table's own authors."""

STATIC_STEPS = 2
"""Steps over K that vLLM's kernel loads ahead where K is compiled in: it refuses a K of fewer."""

TableTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class SkinnyGemmConfig(Part):
    """The fields of ``vllm.model_executor.kernels.linear.cute_dsl.skinny_gemm.SkinnyGemmConfig``."""

    num_rows: TableTokens
    """Tokens, exactly."""
    block_size: Annotated[int, Field(ge=32, le=1024, multiple_of=32)]
    """Threads."""
    outputs_per_block: Annotated[int, Field(ge=1)]
    """Rows of the weight."""
    k_unroll: Annotated[int, Field(ge=1)]
    """Steps of the loop over K."""
    vector_width: Annotated[int, Field(ge=1)]
    """Elements of a load."""
    static_k: int | None
    """K when it is compiled in."""


class MeasuredEntry(Part):
    """What the entry rests on: a config of the shape's operator."""

    variant: str
    """Of the kernel that was measured."""
    params: Params
    """Of that kernel. ``pdl`` of Megatune's own has no counterpart: vLLM decides by platform."""
    stage: Stage
    """Whether a search found it or it was measured again among finalists."""
    provenance: Provenance
    """Where the figure comes from."""
    latency: Latency
    """Of vLLM's own kernel, or of Megatune's of the same tile shape."""
    baseline: str
    """What it was compared with."""
    baseline_latency: Latency
    """Of the baseline."""
    gain: Annotated[float, Field(ge=MIN_GAIN, lt=1)]
    """Share of the baseline's time that is saved."""
    shipped_latency: Latency | None
    """Of what vLLM's own table has there; None where that was not measured."""
    evidence: tuple[MeasurementId, ...]
    """Of the config and of the baseline."""


class Entry(Part):
    """Tokens at which the table names a config."""

    tokens: TableTokens
    """Exactly."""
    config: SkinnyGemmConfig
    """What vLLM runs."""
    measured: MeasuredEntry
    """Why."""

    @model_validator(mode="after")
    def _exact(self) -> Self:
        if self.config.num_rows != self.tokens:
            raise ValueError(f"num_rows {self.config.num_rows} must be the tokens, {self.tokens}")
        return self


class NoEntry(Part):
    """Tokens at which nothing is to be named, so that cuBLAS serves, or what vLLM's own table has."""

    tokens: TableTokens
    """Exactly."""
    reason: str
    """Why, in one line."""


class NotMapped(Part):
    """A decision of the plan that the table cannot name."""

    tokens: TableTokens
    """Exactly."""
    variant: str
    """Of the plan's decision."""
    params: Params
    """Of the plan's decision."""
    latency: Latency
    """Of the plan's decision."""
    reasons: Annotated[tuple[str, ...], Field(min_length=1)]
    """Each in one line."""


class TableShape(Part):
    """One projection by its local shape."""

    n: Annotated[int, Field(ge=1)]
    """Local outputs."""
    k: Annotated[int, Field(ge=1)]
    """Local inputs."""
    operator: Literal["projection", "vllm-skinny-gemm"]
    """Whose figures these are: of Megatune's own kernel, or of vLLM's."""
    entries: tuple[Entry, ...]
    """Ascending in tokens."""
    cublas: tuple[NoEntry, ...]
    """Measured: nothing that the table can name saves enough."""
    kept: tuple[NoEntry, ...]
    """Measured: nothing is faster than what vLLM's own table has there."""
    unmeasured: tuple[TableTokens, ...]
    """Nothing that the table can name was measured: leave whatever the runtime has there."""
    not_mapped: tuple[NotMapped, ...]
    """Where the plan would run something else."""

    @model_validator(mode="after")
    def _legal(self) -> Self:
        without = [each.tokens for each in (*self.cublas, *self.kept)]
        tokens = sorted([*(entry.tokens for entry in self.entries), *without, *self.unmeasured])
        if tokens != list(range(1, MAX_TOKENS + 1)):
            raise ValueError(f"n={self.n}, k={self.k}: each of 1 to {MAX_TOKENS} tokens must be stated once")
        for entry in self.entries:
            found = illegal(entry.config, self.n, self.k)
            if found:
                raise ValueError(f"n={self.n}, k={self.k}, {entry.tokens} tokens: {'; '.join(found)}")
        return self


class Runtime(Part):
    """What reads the table."""

    name: Literal["vllm"] = "vllm"
    """Of the distribution."""
    version: Literal["0.33.0"] = "0.33.0"
    """The one version whose format this is."""
    module: Literal["vllm.models.kimi_k3.nvidia.low_latency_gemm"] = "vllm.models.kimi_k3.nvidia.low_latency_gemm"
    """That holds the table."""
    table: Literal["KIMI_K3_PROJECTIONS", "KIMI_K3_PROJECTIONS_SM90", "KIMI_K3_PROJECTIONS_SM100"]
    """Name in the module; the table must be changed before the model loads."""


class Source(Part):
    """The plan that the table was made from."""

    name: str
    """Of the plan."""
    digest: str
    """Of the plan."""
    target: dict[str, Any]
    """What was measured on."""
    regime: str
    """Conditions of the measurements."""


class Table(Part):
    """The whole file."""

    format: Literal["megatune-vllm-low-latency-table"] = "megatune-vllm-low-latency-table"
    """Says what the file is."""
    schema_version: Literal[2] = 2
    """Of this file."""
    runtime: Runtime
    """What reads the table."""
    plan: Source
    """What the table was made from."""
    min_gain: float = MIN_GAIN
    """Share of the baseline's time that every entry saves at least."""
    notes: tuple[str, ...]
    """What to know before it serves."""
    shapes: Annotated[tuple[TableShape, ...], Field(min_length=1)]
    """Each (N, K) once."""
    skipped: tuple[str, ...]
    """Shapes of the plan that the table cannot hold, each with its reason."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        keys = [(shape.n, shape.k) for shape in self.shapes]
        if len(set(keys)) != len(keys):
            raise ValueError("two shapes have the same (N, K)")
        return self


def illegal(config: SkinnyGemmConfig, n: int, k: int) -> list[str]:
    """One line for each reason why vLLM's kernel refuses the config at this shape; empty when it takes it."""
    found = []
    if n % config.outputs_per_block:
        found.append(f"N={n} is not divisible by outputs_per_block={config.outputs_per_block}")
    step = config.block_size * config.vector_width
    if k % step:
        found.append(f"K={k} is not divisible by block_size x vector_width={step}")
    if config.static_k not in (None, k):
        found.append(f"static_k={config.static_k} is not K={k}")
    elif config.static_k is not None and k < STATIC_STEPS * step:
        found.append(f"static_k={k} is less than {STATIC_STEPS} x block_size x vector_width={STATIC_STEPS * step}")
    return found
