"""Errors that were measured at lengths of context, from a TOML file, and the fallback rules that follow from them.

No operator of Megatune reads a context, so that no campaign measures this: whoever serves a model does, with configs
that a plan names. The figures go into the plan as they are, with where they come from.

unit = "largest relative error of the logits"
limit = 0.02                                     # the largest that may serve
source = "long-context evaluation of 2026-11-20, node 7"
target = "8f3c0d5e6a7b1c2d"                      # digest, as megatune show prints it

[[errors]]
operator = "reduction"
shape = "width=7168"
world = 8                                        # 1 where it is left out; dtype is bf16, routing none
config = "0123456789abcdef"                      # digest of the config that served, as the plan has it
revision = "fedcba9876543210"                    # of its kernels, as the plan has it; empty where the plan's is
context_tokens = 4096
error = 0.004
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

from megatune_kernels.errors import MegatuneError
from megatune_planner.given_files import read_toml
from megatune_planner.plan import OperatorPlan
from megatune_planner.plan import ShapePlan
from megatune_planner.rules import ContextError
from megatune_planner.rules import ContextTooLong
from megatune_planner.rules import longest_context


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: str
    shape: str
    world: Annotated[int, Field(ge=1)] = 1
    dtype: str = "bf16"
    routing: str = "none"
    config: str
    revision: str = ""
    context_tokens: Annotated[int, Field(ge=1)]
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def whose(self) -> tuple[str, str, str, int, str]:
        return (self.operator, self.shape, self.dtype, self.world, self.routing)


class ContextErrors(BaseModel):
    """A file as above."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: Annotated[str, Field(min_length=1)]
    limit: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]
    target: str
    errors: Annotated[tuple[_Entry, ...], Field(min_length=1)]


def read_context_errors(path: Path) -> ContextErrors:
    """:raises MegatuneError: naming the file, when it cannot be read or is not as above."""
    found = read_toml(path, ContextErrors)
    seen = set()
    for each in found.errors:
        point = (each.whose, each.config, each.context_tokens)
        if point in seen:
            raise MegatuneError(f"{path}: {each.config} at {each.context_tokens} tokens of context is there twice")
        seen.add(point)
    return found


def context_rules(
    found: ContextErrors, target: str, operators: Sequence[OperatorPlan]
) -> dict[tuple[str, str, str, int, str], ContextTooLong]:
    """The rule of each shape that errors were measured of, by operator and the shape's key.

    Stock serves beyond the longest context up to which no measured error of any config that serves is over the limit:
    what lies between the last good length and the next was not measured, and neither was what is longer than all.

    :param target: digest of what the plan is of.
    :raises MegatuneError: for another target, a shape that the plan does not have, other kernels, and a config that
        would serve without a measured error.
    """
    if found.target != target:
        raise MegatuneError(f"the errors are of target {found.target!r}, the plan is of {target}: measure them there")
    planned = {(each.name, *shape.key): shape for each in operators for shape in each.shapes}
    rules = {}
    for whose in dict.fromkeys(each.whose for each in found.errors):
        shape = planned.get(whose)
        if shape is None:
            raise MegatuneError(f"errors are given of {_spelled(whose)}, and the plan has no such shape")
        serving = tuple(_serving(shape))
        points = tuple(_points(found, whose, shape, serving))
        lacking = [config for config in serving if all(point.config != config for point in points)]
        if lacking:
            raise MegatuneError(
                f"{_spelled(whose)}: no error is given of the config {lacking[0]}, which serves too: measure it as well"
            )
        if points:
            rules[whose] = _rule(found, whose[0], shape, points)
    return rules


def _serving(shape: ShapePlan) -> Iterator[str]:
    yield from dict.fromkeys(band.decision.config for band in shape.bands if band.decision.kind == "config")


def _points(
    found: ContextErrors, whose: tuple[str, str, str, int, str], shape: ShapePlan, serving: Sequence[str]
) -> Iterator[ContextError]:
    """Those of configs that serve, ascending."""
    for each in sorted(found.errors, key=lambda entry: (entry.config, entry.context_tokens)):
        if each.whose == whose and each.config in serving:
            if each.revision != shape.revision:
                raise MegatuneError(
                    f"{_spelled(whose)}: the errors are of kernels {each.revision!r}, the plan is of {shape.revision!r}"
                )
            yield ContextError(config=each.config, context_tokens=each.context_tokens, error=each.error)


def _rule(found: ContextErrors, operator: str, shape: ShapePlan, points: tuple[ContextError, ...]) -> ContextTooLong:
    above, over = longest_context(points, found.limit)
    if over is None:
        reason = f"no {found.unit} was measured at more than {above} tokens of context"
    else:
        reason = (
            f"{found.unit} {over.error:.3g} at {over.context_tokens} tokens of context, {found.limit:.3g} may serve"
        )
    return ContextTooLong(
        operator=operator,
        shape=shape.shape,
        dtype=shape.dtype,
        world=shape.world,
        routing=shape.routing,
        above=above,
        error_unit=found.unit,
        error_limit=found.limit,
        error=None if over is None else over.error,
        source=found.source,
        points=points,
        reason=reason,
    )


def _spelled(whose: tuple[str, str, str, int, str]) -> str:
    operator, shape, dtype, world, routing = whose
    return f"{operator} {shape} ({dtype}, world {world}, routing {routing})"
