"""Crossovers of a plan: where one variant, or a baseline, gives way to another."""

from __future__ import annotations

from typing import Annotated
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part
from megatune_planner.schema import Share
from megatune_planner.schema import Tokens


class Ratio(Part):
    """A ratio of two times and its interval."""

    median: Annotated[float, Field(gt=0)]
    """Of the pairs' ratios, or the ratio of the medians where nothing was paired."""
    low: Annotated[float, Field(gt=0)]
    """Lower end of the interval."""
    high: Annotated[float, Field(gt=0)]
    """Upper end of the interval."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError("an interval must hold its median")
        return self


class CrossoverPoint(Part):
    """The two sides of a crossover at one number of tokens at which both were measured."""

    tokens: Tokens
    """Exactly as measured."""
    ratio: Ratio
    """Time of ``above`` over time of ``below``."""
    faster: str | None
    """``below`` or ``above`` by name; None where the difference is within the noise."""
    paired: bool
    """Whether both were interleaved in one session and compared sample by sample; else by their own intervals."""
    provenance: Provenance
    """Where both figures come from."""
    evidence: tuple[MeasurementId, MeasurementId]
    """Of ``below`` and of ``above``."""


class TokenRange(Part):
    """A run of tokens, both ends included."""

    tokens_lo: Tokens
    """First tokens inside."""
    tokens_hi: Tokens
    """Last tokens inside."""

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.tokens_hi < self.tokens_lo:
            raise ValueError(f"a range cannot end ({self.tokens_hi}) before it begins ({self.tokens_lo})")
        return self


class Traffic(Part):
    """A crossover in bytes of one-shot traffic, which is what it is a matter of; see the plan's units."""

    unit: Literal["bytes"] = "bytes"
    """Of every figure here."""
    bytes_a_token: Annotated[int, Field(ge=1)]
    """Width x bytes an element x world."""
    bytes_lo: Annotated[int, Field(ge=1)]
    """At ``tokens_lo``."""
    bytes_hi: Annotated[int, Field(ge=1)]
    """At ``tokens_hi``."""
    estimate_bytes: float | None
    """At ``estimate_tokens``."""


class Crossover(Part):
    """Where one variant (or baseline) gives way to another, at the shape's own world and width and at no other."""

    kind: Literal["point", "interval", "contested", "never"]
    """``point``: one change of sides, and every number of tokens in between was measured; ``interval``: one change,
    and some in between were not measured; ``contested``: several changes; ``never``: none in the measured range."""
    below: str
    """Variant, or the baseline's name, that is faster at the small end; for two that tie throughout, the first."""
    above: str
    """The other one."""
    faster: str | None
    """Of ``never``: which is nowhere slower; None where the two tie throughout, and for the other kinds."""
    unit: Literal["tokens"] = "tokens"
    """Of ``tokens_lo``, ``tokens_hi`` and ``estimate_tokens``."""
    tokens_lo: Tokens
    """The last tokens before any change of sides; of ``never`` the first that were measured. From here to
    ``tokens_hi`` is the 95 % interval of the crossover."""
    tokens_hi: Tokens
    """The first tokens after every change of sides; of ``never`` the last that were measured."""
    estimate_tokens: float | None
    """Where the two are equally fast, read off the ratios; None unless there is exactly one change."""
    traffic: Traffic | None
    """The same in bytes of one-shot traffic; None for an operator that reduces nothing."""
    changes: tuple[TokenRange, ...]
    """Each change of sides: the last tokens on one and the first on the other, with nothing but ties in between."""
    tied: tuple[Tokens, ...]
    """Measured tokens from ``tokens_lo`` to ``tokens_hi`` where the difference is within the noise."""
    unmeasured: tuple[TokenRange, ...]
    """Tokens inside the changes that were not measured."""
    least_difference: Share
    """Share of the slower one's time below which a difference counts as noise, however significant."""
    suspect: bool
    """Whether the curves step at a change where two smooth ones would cross: measure both again."""
    suspect_reason: str
    """How they step; empty where they do not."""
    points: Annotated[tuple[CrossoverPoint, ...], Field(min_length=1)]
    """Everywhere that both were measured, ascending in tokens: what the rest follows from."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens_hi < self.tokens_lo:
            raise ValueError(f"a crossover cannot end ({self.tokens_hi}) before it begins ({self.tokens_lo})")
        many = {"point": 1, "interval": 1, "never": 0}.get(self.kind, max(2, len(self.changes)))
        if len(self.changes) != many:
            raise ValueError(f"a crossover of kind {self.kind} cannot have {len(self.changes)} changes of sides")
        if (self.kind == "interval") != bool(self.unmeasured) and self.kind != "contested":
            raise ValueError("a crossover is an interval where tokens inside were not measured, and else it is none")
        return self

    @property
    def evidence(self) -> tuple[int, ...]:
        """Ids of the measurements of both at the ends, and at every tie in between."""
        inside = [point for point in self.points if self.tokens_lo <= point.tokens <= self.tokens_hi]
        return tuple(sorted({id_ for point in inside for id_ in point.evidence}))
