"""The file that exporters of all-reduce settings write, as a strict schema."""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_planner.plan import Plan
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens

Bytes = Annotated[int, Field(ge=0)]
World = Annotated[int, Field(ge=2)]


class PlanSource(Part):
    """The plan that a file was made from."""

    name: str
    """Of the plan."""
    digest: str
    """Of the plan."""
    target: dict[str, Any]
    """What was measured on."""
    regime: str
    """Conditions of the measurements."""

    @staticmethod
    def of(plan: Plan) -> PlanSource:
        content = plan.content
        return PlanSource(
            name=content.name,
            digest=plan.digest,
            target=content.target.fingerprint.to_dict(),
            regime=content.regime,
        )


class Runtime(Part):
    """What reads the file."""

    name: str
    """Of the distribution."""
    version: str
    """The one version whose format this is."""


class Limit(Part):
    """Up to which tokens an algorithm won, for one width and world."""

    world: World
    """Ranks."""
    width: Annotated[int, Field(ge=1)]
    """Elements of one token's partial."""
    dtype: str
    """Of the partials."""
    algorithms: Annotated[tuple[Literal["one_shot", "two_shot"], ...], Field(min_length=1)]
    """Which of them count as winning; NCCL is neither."""
    tokens: Annotated[int, Field(ge=0)]
    """The largest measured number up to which every measured one was won; 0: it lost at 1 token already."""
    bytes_a_token: Annotated[int, Field(ge=1)]
    """Of one rank's partial: width x bytes of an element."""
    payload_bytes: Bytes
    """Of one rank's partial at ``tokens``."""
    traffic_bytes: Bytes
    """The same as one-shot traffic, in which a plan gives its crossovers: payload x world."""
    next_tokens: Tokens | None
    """The smallest measured number that the limit leaves out; None: there is none."""
    next_serves: str | None
    """What serves there by the plan: a variant or a baseline."""
    measured_to: Tokens
    """The largest measured number of tokens."""
    provenance: tuple[Provenance, ...]
    """Of everything that was measured of the shape."""
    evidence: tuple[MeasurementId, ...]
    """At ``tokens`` and at ``next_tokens``."""
    warnings: tuple[str, ...]
    """What to know of this limit."""

    @model_validator(mode="after")
    def _converted(self) -> Self:
        if self.payload_bytes != self.tokens * self.bytes_a_token:
            raise ValueError("payload_bytes must be tokens x bytes_a_token")
        if self.traffic_bytes != self.payload_bytes * self.world:
            raise ValueError("traffic_bytes must be payload_bytes x world")
        if self.next_tokens is not None and self.next_tokens <= self.tokens:
            raise ValueError("next_tokens must lie above tokens")
        return self


class Setting(Part):
    """One setting for one world."""

    world: World
    """Ranks."""
    where: Literal["environment", "--compilation-config"]
    """What it is part of."""
    name: str
    """As the runtime spells it."""
    value: int | float | str
    """As the runtime reads it."""
    unit: str
    """Of the value."""
    payload_bytes: Bytes | None
    """The largest partial of one rank that the value lets through; None: any size."""
    conversion: str
    """From tokens to the value, with its figures."""
    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]
    """What it rests on, one for each width."""
    warnings: tuple[str, ...]
    """What to know of this setting."""

    @model_validator(mode="after")
    def _safe(self) -> Self:
        measured = min(limit.payload_bytes for limit in self.limits)
        if self.payload_bytes is not None and self.payload_bytes > measured:
            raise ValueError(
                f"{self.name}={self.value} lets {self.payload_bytes} bytes through, and {measured} were measured"
            )
        return self


class Settings(Part):
    """The whole file."""

    format: Literal["megatune-all-reduce-settings"] = "megatune-all-reduce-settings"
    """Says what the file is."""
    schema_version: Literal[1] = 1
    """Of this file."""
    runtime: Runtime
    """What reads the settings."""
    plan: PlanSource
    """What they were made from."""
    notes: tuple[str, ...]
    """What to know before they serve."""
    settings: Annotated[tuple[Setting, ...], Field(min_length=1)]
    """Ascending in world; a server reads those of its own world."""
    skipped: tuple[str, ...]
    """What the plan has and no setting says, each with its reason."""
