"""What somebody measured besides a plan: parts of a step, or whole steps of stock, from a TOML file.

[[given]]
part = "attention"        # or "step": the whole step with stock serving
tokens = 8
low_us = 1180.0           # µs a step, all layers together
high_us = 1230.0
source = "profile of 2026-11-20, node 7"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from typing import Self

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from megatune_kernels.errors import MegatuneError
from megatune_planner.given_files import read_toml
from megatune_planner.serving.bounds import Bounds
from megatune_planner.serving.step import Given

WHOLE = "step"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    tokens: Annotated[int, Field(ge=1)]
    low_us: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    high_us: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high_us < self.low_us:
            raise ValueError("high_us is below low_us")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    given: list[_Entry]


def read_given(path: Path) -> Given:
    """:raises MegatuneError: naming the file, when it cannot be read or is not as above."""
    found = read_toml(path, _File)
    parts: dict[str, dict[int, Bounds]] = {}
    for entry in found.given:
        points = parts.setdefault(entry.part, {})
        if entry.tokens in points:
            raise MegatuneError(f"{path}: {entry.part} at {entry.tokens} tokens is there twice")
        points[entry.tokens] = Bounds(entry.low_us, entry.high_us)
    sources = {entry.part: entry.source for entry in found.given}
    return Given(parts, parts.pop(WHOLE, {}), sources)
