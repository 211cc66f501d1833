"""What the parts of a plan, and the files made of one, are built from."""

from __future__ import annotations

from typing import Annotated
from typing import Any
from typing import ClassVar

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import SerializerFunctionWrapHandler
from pydantic import model_serializer

Tokens = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MeasurementId = Annotated[int, Field(ge=1)]
Params = dict[str, int | str | bool]


class Part(BaseModel):
    """Frozen, and closed to unknown fields. Parameters are integers, booleans and names: strict, so that True never
    becomes 1 on the way through a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Sparse(Part):
    """A part of which some fields are absent where they say nothing, so that the digests of plans without them are what
    they were before there were such fields."""

    MAY_LACK: ClassVar[tuple[str, ...]] = ()
    """Names of these fields, whose default says nothing."""

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = serialize(self)
        return {name: value for name, value in found.items() if value or name not in self.MAY_LACK}
