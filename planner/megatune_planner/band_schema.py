"""Bands and curves of a plan: what serves which tokens, and the latencies that this rests on."""

from __future__ import annotations

from typing import Annotated
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_kernels.space import Config
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Microseconds
from megatune_planner.schema import Params
from megatune_planner.schema import Part
from megatune_planner.schema import Share
from megatune_planner.schema import Sparse
from megatune_planner.schema import Tokens


class Latency(Part):
    """A median and its interval."""

    median_us: Microseconds
    """Median of the samples."""
    low_us: Microseconds
    """Lower end of the interval."""
    high_us: Microseconds
    """Upper end of the interval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low_us <= self.median_us <= self.high_us:
            raise ValueError("an interval must hold its median")
        return self


def _check_config(config: str, variant: str, params: Params) -> None:
    """Exporters write the params, so that a config which is named otherwise is not the one that was measured."""
    meant = Config.of(variant, dict(params)).digest
    if config != meant:
        raise ValueError(f"the config {config} is not that of its params, which is {meant}")


class UseConfig(Part):
    """Run this config."""

    kind: Literal["config"] = "config"
    """Which decision this is."""
    variant: str
    """Top-level algorithm of the operator."""
    params: Params
    """Values of the variant's parameters."""
    config: str
    """Digest of variant and params."""
    workspace_bytes: Annotated[int, Field(ge=0)]
    """Device memory of every rank that the config needs beside its operands, at the most tokens of its band."""
    workspace_alignment_bytes: Annotated[int, Field(ge=1)]
    """What the address of that memory must be a multiple of."""
    alignment_bytes: Annotated[int, Field(ge=1)]
    """What the address of every operand must be a multiple of."""
    resident: bool
    """Whether its blocks wait for one another, so that all of them have to be on the GPU at once."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        _check_config(self.config, self.variant, self.params)
        return self


class UseStock(Part):
    """Run what serves without a plan."""

    kind: Literal["stock"] = "stock"
    """Which decision this is."""
    baseline: str | None = None
    """The baseline that is the fastest in the band; None where none was measured."""


Decision = Annotated[UseConfig | UseStock, Field(discriminator="kind")]


class RoutingPoint(Sparse):
    """What a band's decision does at one routing, of several that it was chosen for."""

    MAY_LACK = ("facts",)

    routing: str
    """Its name."""
    latency: Latency
    """Of the decision; for stock the baseline's own."""
    baseline_latency: Latency
    """Of the baseline that the point names."""
    evidence: tuple[MeasurementId, ...]
    """Of the decision and of the baseline."""
    facts: dict[str, float] | None = None
    """What the operator says of the workload beside its key; absent where it says nothing."""


class BandPoint(Sparse):
    """What a band's decision does at one measured number of tokens."""

    MAY_LACK = ("routings", "facts")

    tokens: Tokens
    """Exactly as measured."""
    latency: Latency
    """Of the decision; for stock the baseline's own."""
    baseline: str
    """Name of the fastest baseline here; of emulated ranks, which have none, the slowest variant's."""
    baseline_latency: Latency
    """Of that baseline; of the variant's best config."""
    gain: Annotated[float, Field(ge=0, lt=1)]
    """Share of the baseline's time that the decision saves; 0 for stock."""
    paired: bool
    """Whether decision and baseline were interleaved in one session, and compared sample by sample."""
    tie_set_size: Annotated[int, Field(ge=0)]
    """Configs here that are not significantly slower than the best; 0 where no config was measured."""
    provenance: tuple[Provenance, ...]
    """Of the evidence."""
    evidence: tuple[MeasurementId, ...]
    """Of the decision and of the baseline."""
    routings: tuple[RoutingPoint, ...] = ()
    """Of a shape that was decided for several routings, the same at each of them; else absent."""
    facts: dict[str, float] | None = None
    """What the operator says of the workload beside its key; absent where it says nothing."""


class Band(Part):
    """An interval of tokens with one decision."""

    tokens_lo: Tokens
    """First tokens inside."""
    tokens_hi: Tokens | None
    """None: without end."""
    decision: Decision
    """What serves."""
    reason: str
    """Why, in one line."""
    points: tuple[BandPoint, ...]
    """One for each measured number of tokens inside, ascending."""
    measured_share: Share
    """Share of the band's tokens that were measured; the rest is predicted from its neighbours. 0 without end."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens_hi is not None and self.tokens_hi < self.tokens_lo:
            raise ValueError(f"a band cannot end ({self.tokens_hi}) before it begins ({self.tokens_lo})")
        tokens = [point.tokens for point in self.points]
        if tokens != sorted(set(tokens)) or any(not self.covers(t) for t in tokens):
            raise ValueError("a band's points must ascend and lie inside it")
        slower = [p.tokens for p in self.points if p.latency.median_us > p.baseline_latency.median_us]
        if slower:
            raise ValueError(f"a band must not be slower than its baseline, but is at {slower} tokens")
        return self

    @property
    def predicted_share(self) -> float:
        return 1 - self.measured_share

    def covers(self, tokens: int) -> bool:
        return self.tokens_lo <= tokens and (self.tokens_hi is None or tokens <= self.tokens_hi)


class NamedBand(Part):
    """Which band of a plan something is said of."""

    operator: str
    """Of the operator."""
    shape: str
    """Key of the dims."""
    dtype: str
    """Of the operands."""
    world: Annotated[int, Field(ge=1)]
    """Ranks of one launch."""
    routing: str
    """How tokens are spread over experts."""
    tokens_lo: Tokens
    """First tokens of the band."""
    tokens_hi: Tokens | None
    """Last ones; None: without end."""


class CurvePoint(Part):
    """The best config of a curve at one measured number of tokens."""

    tokens: Tokens
    """Exactly as measured."""
    variant: str
    """Of the config; a baseline's name for a baseline."""
    params: Params
    """Of the config; none for a baseline."""
    config: str
    """Digest of variant and params."""
    latency: Latency
    """Of the config."""
    stage: Stage
    """Whether a search found it or it was measured again among finalists."""
    provenance: Provenance
    """Where the figure comes from."""
    evidence: MeasurementId
    """The measurement."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        _check_config(self.config, self.variant, self.params)
        return self


class Curve(Part):
    """Latency over tokens of one variant's best, of a baseline, or of the best that an exporter can express."""

    kind: Literal["variant", "baseline", "exporter"]
    """Whose curve it is."""
    name: str
    """Of the variant, the baseline or the exporter."""
    points: tuple[CurvePoint, ...]
    """Ascending in tokens."""

    def at(self, tokens: int) -> CurvePoint | None:
        return next((point for point in self.points if point.tokens == tokens), None)
