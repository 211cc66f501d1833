"""The file that the exporter ``flashinfer`` writes, as a strict schema."""

from __future__ import annotations

from typing import Annotated
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_planner.exporters.reduction_schema import Limit
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.schema import Part

Bounds = Annotated[tuple[Annotated[int, Field(ge=1)] | None, ...], Field(min_length=1)]


class Target(Part):
    """What serves a range of tokens."""

    protocol: Literal["ll", "bt"]
    """One-shot or two-shot."""
    preset: str
    """Name of the preset in FlashInfer's package of the protocol."""


class Dispatch(Part):
    """The fields of ``MRangeDispatch``."""

    upper_bounds: Bounds
    """Last tokens of each range, ascending; None, for the last alone: without end."""
    targets: tuple[Target, ...]
    """One for each range."""

    @model_validator(mode="after")
    def _legal(self) -> Self:
        finite = [bound for bound in self.upper_bounds if bound is not None]
        if len(self.targets) != len(self.upper_bounds):
            raise ValueError("there must be one target for each upper bound")
        if self.upper_bounds[-1] is not None or len(finite) != len(self.upper_bounds) - 1:
            raise ValueError("the last range, and no other, must have no end")
        if finite != sorted(set(finite)):
            raise ValueError("upper bounds must ascend")
        return self


class Profile(Part):
    """The fields of ``StaticProfile``, and what they rest on."""

    tp_size: Literal[4, 8, 16]
    """Ranks."""
    hidden_size: Annotated[int, Field(ge=8, multiple_of=8)]
    """Elements of a token."""
    top_k: Annotated[int, Field(ge=1)]
    """Experts a token; it finds the profile, and the plain all-reduce does not depend on it."""
    dtype: Literal["bfloat16"] = "bfloat16"
    """Of torch."""
    compute_capability: tuple[int, int]
    """What was measured on."""
    all_reduce_routes: Dispatch
    """Its first bound is the one-shot limit."""
    finalize_routes: Dispatch
    """As FlashInfer ships them: nothing was measured of these."""
    conversion: str
    """From tokens to the bound, with its figures."""
    limit: Limit
    """What the bound rests on."""

    @model_validator(mode="after")
    def _safe(self) -> Self:
        one_shot = [
            bound
            for bound, target in zip(self.all_reduce_routes.upper_bounds, self.all_reduce_routes.targets, strict=True)
            if target.protocol == "ll"
        ]
        if one_shot != ([self.limit.tokens] if self.limit.tokens else []):
            raise ValueError(f"one-shot must end at the {self.limit.tokens} tokens that were measured")
        return self


class Profiles(Part):
    """The whole file."""

    format: Literal["megatune-flashinfer-routes"] = "megatune-flashinfer-routes"
    """Says what the file is."""
    schema_version: Literal[1] = 1
    """Of this file."""
    runtime: Runtime
    """What reads the routes."""
    plan: PlanSource
    """What they were made from."""
    applies_rms_norm: Literal[False] = False
    """The bounds were measured without the norm."""
    notes: tuple[str, ...]
    """What to know before they serve."""
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1)]
    """Each (world, hidden size, top-k) once."""
    skipped: tuple[str, ...]
    """What the plan has and no profile says, each with its reason."""
