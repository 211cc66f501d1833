"""An operator of numbers alone: a cost surface with interactions, optima that move with the tokens, and failures."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import megatune_kernels.operator
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Model
from megatune_kernels.models import Parallel
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain

TARGET = Target(
    Hardware("Toy GPU", "sm_90a", "0001", 132, 50 * 2**20, 80 * 2**30, "none"),
    Toolchain("580", "13.0", "4.8.1", "2.11"),
)

SIMT = (
    Parameter("block", (32, 64, 96, 128, 192, 256), 128, "threads of a block"),
    Parameter("rows", (1, 2, 3, 4), 2, "output columns of a block"),
    Parameter("unroll", (1, 2, 4, 8), 2, "loads in flight"),
    Parameter("static", (False, True), True, "whether the bounds are compiled in"),
)
MMA = (
    Parameter("tile", (16, 32, 64, 128), 64, "columns of a tile"),
    Parameter("split", (1, 2, 4, 8), 1, "blocks along k", changes_bits=True),
    Parameter("stages", (2, 3, 4, 6), 3, "tiles in flight"),
    Parameter("swizzle", ("none", "half", "full"), "full", "layout in shared memory"),
)


class Toy(Operator):
    name = "toy"
    variants = ("simt", "mma")
    baselines = ("stock",)

    def workloads(self, model: Model, parallel: Parallel, tokens: Sequence[int]) -> list[Workload]:
        dims = {"k": model.hidden, "n": model.hidden // parallel.tensor}
        return [self.workload(dims, count) for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "bf16", world: int = 1) -> Workload:
        if set(dims) != {"n", "k"}:
            raise MegatuneError(f"toy needs the dims k, n, not {', '.join(sorted(dims))}")
        if dims["k"] % 8:
            raise MegatuneError(f"k={dims['k']}: has to be a multiple of 8")
        return Workload.of("toy", dims, tokens, dtype=dtype)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        simt = VariantSpace(
            "simt",
            SIMT,
            (Constraint("registers", "too many live values", lambda p: int(p["rows"]) * int(p["unroll"]) <= 16),),
        )
        mma = VariantSpace(
            "mma",
            MMA,
            (Constraint("shared memory", "stages do not fit", lambda p: int(p["tile"]) * int(p["stages"]) <= 512),),
        )
        return Space((mma,) if workload.tokens > 16 else (simt, mma))

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"k": workload["k"], "variant": config.variant, **config.params}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        return Artifact(config.digest, arch.name, "toy", b"cubin", 32, 0)

    def launch(self, workload: Workload, config: Config) -> Launch:
        return Launch((1, 1, 1), (32, 1, 1), 0)

    def cost(self, workload: Workload, config: Config) -> Cost:
        return Cost(2 * workload["n"] * workload["k"], 0, 2 * workload["n"] * workload["k"] * workload.tokens)

    def rotating_bytes(self, workload: Workload) -> int:
        return workload["n"]

    def inputs(self, workload: Workload, copies: int, seed: int) -> Any:
        raise AssertionError("the toy runs nowhere")

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        raise AssertionError("the toy runs nowhere")


@contextmanager
def registered(toy: type[Toy] = Toy) -> Iterator[None]:
    """The toy is the only registered operator."""
    point = mock.Mock(load=lambda: toy)
    with mock.patch.object(megatune_kernels.operator, "entry_points", return_value=[point]):
        megatune_kernels.operator.operators.cache_clear()
        try:
            yield
        finally:
            megatune_kernels.operator.operators.cache_clear()


def true_us(workload: Workload, config: Config) -> float:
    """The microseconds that a launch takes; the best config moves smoothly with tokens and dims."""
    floor = 3 + 2 * workload["n"] * workload["k"] / 4.3e6
    tokens, wide = math.log2(workload.tokens), math.log2(workload["n"] / 1024)
    p: dict[str, Any] = config.params
    if config.variant == "stock":
        return floor * (1.5 - 0.03 * tokens)
    if config.variant == "simt":
        block, rows, unroll = math.log2(p["block"]), float(p["rows"]), math.log2(p["unroll"])
        slow = 0.02 * (block - 6.5 - 0.3 * wide) ** 2 + 0.03 * (rows - 2 - 0.4 * wide + 0.3 * tokens) ** 2
        slow += 0.03 * (unroll - 2 + 0.2 * tokens) ** 2 + 0.02 * (block - 6) * (unroll - 1)
        slow += 0.06 * tokens + (0.0 if p["static"] else 0.04)
    else:
        tile, split, stages = math.log2(p["tile"]), math.log2(p["split"]), float(p["stages"])
        slow = 0.12 + 0.04 * (tile - 4 - 0.3 * tokens) ** 2 + 0.03 * (split - 2 + 0.5 * wide) ** 2
        slow += (
            0.01 * (stages - 4) ** 2
            + 0.015 * (tile - 5) * (split - 1)
            + {"none": 0.1, "half": 0.03, "full": 0.0}[p["swizzle"]]
        )
    # What no parameter explains: bank conflicts, wave tails.
    rough = random.Random(f"{workload.shape} {config}").gauss(0, 0.015)
    return floor * (1 + max(0.0, slow) + rough)


def samples_us(workload: Workload, config: Config, count: int = 7, seed: int = 0) -> tuple[float, ...]:
    """Samples around ``true_us`` with half a percent of noise."""
    noise = random.Random(f"{workload} {config} {seed}")
    return tuple(true_us(workload, config) * (1 + abs(noise.gauss(0, 0.005))) for _ in range(count))
