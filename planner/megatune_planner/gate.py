"""The gate: what a plan holds for. Everything else is served by stock, and the reader says why.

The reader checks it once, when the server starts. ``runtimes.py`` says the same in the words of SGLang and of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import model_validator

from megatune_kernels.errors import MegatuneError
from megatune_planner.features import FEATURES
from megatune_planner.reader import device_ids_like
from megatune_planner.reader import part_of
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens

MEMORY_SLACK = 0.02
"""Drivers and CUDA contexts report the memory of one part up to a hundredth apart, and parts differ by more."""


class Gate(Part):
    """What has to be there for the plan's decisions to serve."""

    part: str
    """The hardware's name, for people; the fields below decide."""
    arch: str
    """As the compiler spells it, e.g. ``sm_90a``."""
    sms: Annotated[int, Field(ge=0)]
    """Exactly: a partition of a GPU has fewer."""
    memory_bytes_lo: Annotated[int, Field(ge=0)]
    """Least memory of the GPU."""
    memory_bytes_hi: Annotated[int, Field(ge=0)]
    """Most memory of the GPU."""
    device_ids: Annotated[tuple[str, ...], Field(min_length=1)]
    """PCI device ids of the same hardware, hexadecimal; a name stands for those that the reader knows it for."""
    toolchain: dict[str, str]
    """Exact versions of what compiles, launches and is compared with."""
    model: str | None
    """Name of the model; None: every model that has the plan's shapes."""
    worlds: tuple[Annotated[int, Field(ge=1)], ...]
    """Tensor-parallel ranks of the deployment; empty: any, since no launch involves another rank."""
    dtypes: Annotated[tuple[str, ...], Field(min_length=1)]
    """Of the operands."""
    execution: Literal["graph", "eager"]
    """How the steps were launched that were measured."""
    features: tuple[str, ...]
    """What may be switched on all the same; whatever is not among them is refused."""
    max_tokens: Tokens
    """Rows of the largest step that a config serves."""
    resident_blocks: Annotated[int, Field(ge=0)]
    """SMs that have to be free for blocks that wait for one another; 0 where none do."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.memory_bytes_hi < self.memory_bytes_lo:
            raise ValueError("the gate's memory cannot end before it begins")
        check_features(self.features)
        return self


def check_features(names: Sequence[str]) -> None:
    """:raises ValueError: for a feature that nobody knows, with those that are known."""
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"no such feature: {name!r}; allowed: {', '.join(FEATURES)}")


def gate_of(
    *,
    hardware: dict[str, Any],
    toolchain: dict[str, Any],
    execution: str,
    dtypes: Sequence[str],
    worlds: Sequence[int],
    max_tokens: int,
    resident: bool,
    model: str | None = None,
    features: Sequence[str] = (),
) -> Gate:
    """The gate of a plan that was measured on this target.

    :param worlds: ranks of the plan's shapes; those of one rank alone ask nothing of the deployment.
    :param max_tokens: rows of the largest step that a config serves.
    :param resident: whether a config's blocks wait for one another.
    :raises MegatuneError: for a feature that nobody knows.
    """
    try:
        check_features(features)
    except ValueError as error:
        raise MegatuneError(str(error)) from None
    memory, sms = int(hardware["memory_bytes"]), int(hardware["sms"])
    device_id = str(hardware["device_id"]).lower()
    return Gate.model_validate(
        {
            "part": part_of(device_id) or str(hardware["gpu"]),
            "arch": str(hardware["arch"]),
            "sms": sms,
            "memory_bytes_lo": int(memory * (1 - MEMORY_SLACK)),
            "memory_bytes_hi": int(memory * (1 + MEMORY_SLACK)),
            "device_ids": device_ids_like(device_id),
            "toolchain": {name: str(value) for name, value in sorted(toolchain.items())},
            "model": model,
            "worlds": tuple(sorted({world for world in worlds if world > 1})),
            "dtypes": tuple(sorted(set(dtypes))),
            "execution": execution,
            "features": tuple(sorted(set(features))),
            "max_tokens": max_tokens,
            "resident_blocks": sms if resident else 0,
        }
    )
