"""Fallback rules as data: each says when it holds, what then serves, why, and on what that rests.

A plan's rules are evaluated top down, and the first that holds decides.
"""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import Field

from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens


class _Rule(Part):
    then: Literal["stock", "band"]
    """``stock``, or the decision of the band that covers the tokens."""
    reason: str
    """Why, in one line."""
    evidence: tuple[MeasurementId, ...] = ()
    """What the rule rests on; empty where it rests on what was not measured."""


class OtherHardware(_Rule):
    """The machine differs from the plan's target in a field of its hardware."""

    when: Literal["other_hardware"] = "other_hardware"
    """Which rule this is."""
    hardware: dict[str, Any]
    """What the machine has to have."""


class OtherToolchain(_Rule):
    """The machine differs from the plan's target in a field of its toolchain."""

    when: Literal["other_toolchain"] = "other_toolchain"
    """Which rule this is."""
    toolchain: dict[str, Any]
    """What the machine has to have."""


class OtherWorkload(_Rule):
    """No shape of the plan has this operator, shape, dtype, world and routing."""

    when: Literal["other_workload"] = "other_workload"
    """Which rule this is."""
    dtypes: tuple[str, ...]
    """Those that the plan has."""
    worlds: tuple[int, ...]
    """Those that the plan has."""


class MissingLink(_Rule):
    """The ranks of the step cannot all write into one another's memory over the links that were measured."""

    when: Literal["missing_link"] = "missing_link"
    """Which rule this is."""
    links: str
    """How the GPUs of the target reach one another."""
    worlds: tuple[int, ...]
    """How many ranks have to; those that the plan has."""


class WorkspaceTooSmall(_Rule):
    """A rank holds less memory for its peers than the config of the band that covers the tokens needs."""

    when: Literal["workspace_too_small"] = "workspace_too_small"
    """Which rule this is."""
    unit: Literal["bytes"] = "bytes"
    """Of ``workspace_bytes``."""
    operator: str
    """Which the rule is about."""
    shape: str
    """Which the rule is about."""
    dtype: str
    """Of the shape."""
    world: int
    """Of the shape."""
    routing: str
    """Of the shape."""
    workspace_bytes: int
    """With so many on every rank no band falls under the rule."""


class OutsideTokens(_Rule):
    """The step has more or fewer tokens than were measured of the shape."""

    when: Literal["outside_tokens"] = "outside_tokens"
    """Which rule this is."""
    unit: Literal["tokens"] = "tokens"
    """Of ``below`` and ``above``."""
    operator: str
    """Which the rule is about."""
    shape: str
    """Which the rule is about."""
    dtype: str
    """Of the shape."""
    world: int
    """Of the shape."""
    routing: str
    """Of the shape."""
    below: Tokens
    """Steps with fewer tokens than this."""
    above: Tokens
    """Steps with more tokens than this."""


class StockWon(_Rule):
    """The tokens lie in a band where nothing beat the baseline."""

    when: Literal["stock_won"] = "stock_won"
    """Which rule this is."""
    unit: Literal["tokens"] = "tokens"
    """Of ``tokens_lo`` and ``tokens_hi``."""
    operator: str
    """Which the rule is about."""
    shape: str
    """Which the rule is about."""
    dtype: str
    """Of the shape."""
    world: int
    """Of the shape."""
    routing: str
    """Of the shape."""
    tokens_lo: Tokens
    """First tokens inside."""
    tokens_hi: Tokens
    """Last tokens inside."""


class Covered(_Rule):
    """A band with a config covers the tokens."""

    when: Literal["covered"] = "covered"
    """Which rule this is."""


class Otherwise(_Rule):
    """Always."""

    when: Literal["otherwise"] = "otherwise"
    """Which rule this is."""


Rule = Annotated[
    OtherHardware
    | OtherToolchain
    | OtherWorkload
    | MissingLink
    | WorkspaceTooSmall
    | OutsideTokens
    | StockWon
    | Covered
    | Otherwise,
    Field(discriminator="when"),
]
