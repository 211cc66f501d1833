"""What the parts of a plan, and the files made of one, are built from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

Tokens = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MeasurementId = Annotated[int, Field(ge=1)]
Params = dict[str, int | str | bool]


class Part(BaseModel):
    """Frozen, and closed to unknown fields. Parameters are integers, booleans and names: strict, so that True never
    becomes 1 on the way through a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
