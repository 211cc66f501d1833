"""Fallback rules as data: each says when it holds, on which inputs that depends, what then serves, why, and on what
that rests.

A plan's rules are evaluated top down, and the first that holds decides. ``inputs`` are names in ``inputs.py``, which
says of each what it is, whether all ranks share it, and when it is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from typing import ClassVar
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_planner.inputs import check_inputs
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens

OF_A_SHAPE = ("operator", "shape", "dtype", "world", "routing")


class _Rule(Part):
    READS: ClassVar[tuple[str, ...]]

    when: str
    """Which rule this is."""
    inputs: tuple[str, ...]
    """What it depends on, by name; all of it is the same on every rank."""
    then: Literal["stock", "band"]
    """``stock``, or the decision of the band that covers the tokens."""
    reason: str
    """Why, in one line."""
    evidence: tuple[MeasurementId, ...] = ()
    """What the rule rests on; empty where it rests on what was not measured."""

    @model_validator(mode="after")
    def _shared(self) -> Self:
        check_inputs(self.when, self.inputs, self.READS)
        return self


class _StockRule(_Rule):
    then: Literal["stock"] = "stock"
    """Stock."""


class _ShapeRule(_StockRule):
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


class OtherHardware(_StockRule):
    """The machine is not the hardware of the plan's gate."""

    READS = ("hardware",)
    when: Literal["other_hardware"] = "other_hardware"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""


class OtherToolchain(_StockRule):
    """A version of the machine's toolchain is not that of the plan's gate."""

    READS = ("toolchain",)
    when: Literal["other_toolchain"] = "other_toolchain"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""


class OtherDeployment(_StockRule):
    """Another model, world, dtype or execution than the plan's gate has is served, or with a feature that it does not
    accept."""

    READS = ("model", "world", "dtype", "execution", "features")
    when: Literal["other_deployment"] = "other_deployment"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""


class OtherWorkload(_StockRule):
    """No shape of the plan has this operator, shape, dtype, world and routing."""

    READS = OF_A_SHAPE
    when: Literal["other_workload"] = "other_workload"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    dtypes: tuple[str, ...]
    """Those that the plan has."""
    worlds: tuple[int, ...]
    """Those that the plan has."""


class MissingLink(_StockRule):
    """The ranks of the launch cannot all write into one another's memory over the links that were measured."""

    READS = ("world", "links")
    when: Literal["missing_link"] = "missing_link"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    links: str
    """How the GPUs of the target reach one another."""
    worlds: tuple[int, ...]
    """How many ranks have to; those that the plan has."""


class WorkspaceTooSmall(_ShapeRule):
    """A rank holds less memory for its peers than the config of the band that covers the tokens needs."""

    READS = (*OF_A_SHAPE, "tokens", "workspace_bytes")
    when: Literal["workspace_too_small"] = "workspace_too_small"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    unit: Literal["bytes"] = "bytes"
    """Of ``workspace_bytes``."""
    workspace_bytes: int
    """With so many on every rank no band falls under the rule."""


class OutsideTokens(_ShapeRule):
    """The step has more or fewer tokens than were measured of the shape."""

    READS = (*OF_A_SHAPE, "tokens")
    when: Literal["outside_tokens"] = "outside_tokens"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    unit: Literal["tokens"] = "tokens"
    """Of ``below`` and ``above``."""
    below: Tokens
    """Steps with fewer tokens than this."""
    above: Tokens
    """Steps with more tokens than this."""

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.above < self.below:
            raise ValueError(f"{self.when}: {self.above} tokens cannot be the most where {self.below} are the fewest")
        return self


class StockWon(_ShapeRule):
    """The tokens lie in a band where nothing beat the baseline."""

    READS = (*OF_A_SHAPE, "tokens")
    when: Literal["stock_won"] = "stock_won"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    unit: Literal["tokens"] = "tokens"
    """Of ``tokens_lo`` and ``tokens_hi``."""
    tokens_lo: Tokens
    """First tokens inside."""
    tokens_hi: Tokens
    """Last tokens inside."""

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if self.tokens_hi < self.tokens_lo:
            raise ValueError(f"{self.when}: it cannot end ({self.tokens_hi}) before it begins ({self.tokens_lo})")
        return self


class ContextError(Part):
    """The error of a result at one length of context."""

    config: str
    """Digest of the config that served."""
    context_tokens: Annotated[int, Field(ge=1)]
    """Length of the context."""
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """In the unit of the rule."""


def longest_context(points: Sequence[ContextError], limit: float) -> tuple[int, ContextError | None]:
    """The longest measured context, 0 for none, up to which every error of every config is within the limit.

    :returns: it, and the first error beyond the limit; None where none is.
    """
    found: list[tuple[int, ContextError | None]] = []
    for config in dict.fromkeys(point.config for point in points):
        good = 0
        over = None
        for point in sorted((p for p in points if p.config == config), key=lambda p: p.context_tokens):
            if point.error > limit:
                over = point
                break
            good = point.context_tokens
        found.append((good, over))
    return min(found, key=lambda each: (each[0], each[1] is None))


class ContextTooLong(_ShapeRule):
    """The context is longer than any at which the measured error stayed within its limit.

    While a graph is captured the step's own context says nothing of the contexts that it will be replayed with: the
    longest that the server admits decides then.
    """

    READS = (*OF_A_SHAPE, "context_tokens", "max_context_tokens")
    when: Literal["context_too_long"] = "context_too_long"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    unit: Literal["tokens"] = "tokens"
    """Of ``above``."""
    above: Annotated[int, Field(ge=0)]
    """Contexts longer than this, the longest up to which every measured error of every config was within the limit."""
    error_unit: Annotated[str, Field(min_length=1)]
    """What the error is, e.g. ``largest relative error``."""
    error_limit: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The largest error that may serve."""
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    """The first measured one that is larger; None where all are within it, and longer contexts were not measured."""
    source: Annotated[str, Field(min_length=1)]
    """Where the errors come from, in the words of whoever measured them."""
    provenance: Literal["imported"] = "imported"
    """Of the errors: no campaign measured them."""
    points: Annotated[tuple[ContextError, ...], Field(min_length=1)]
    """What the rule follows from: every config that serves, at each length that was measured."""

    @model_validator(mode="after")
    def _follows(self) -> Self:
        above, over = longest_context(self.points, self.error_limit)
        if (self.above, self.error) != (above, None if over is None else over.error):
            raise ValueError(f"{self.when}: by the measured errors it begins above {above} tokens, not {self.above}")
        return self


class Covered(_Rule):
    """A band with a config covers the tokens."""

    READS = (*OF_A_SHAPE, "tokens")
    when: Literal["covered"] = "covered"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """What it depends on."""
    then: Literal["band"] = "band"
    """The band's decision."""


class Otherwise(_StockRule):
    """Always."""

    READS = ()
    when: Literal["otherwise"] = "otherwise"
    """Which rule this is."""
    inputs: tuple[str, ...] = READS
    """Nothing."""


Rule = Annotated[
    OtherHardware
    | OtherToolchain
    | OtherDeployment
    | OtherWorkload
    | MissingLink
    | WorkspaceTooSmall
    | OutsideTokens
    | StockWon
    | ContextTooLong
    | Covered
    | Otherwise,
    Field(discriminator="when"),
]
