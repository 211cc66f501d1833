"""A toy whose variants cross: mma overtakes simt at ``crossing`` tokens of a shape, and the best configs move."""

from __future__ import annotations

import math
import random

from toy import Toy

from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture

VARIANTS = (
    VariantSpace("simt", (Parameter("rows", tuple(range(1, 13)), 4, "output columns of a block"),)),
    VariantSpace("mma", (Parameter("tile", tuple(range(1, 13)), 4, "columns of a tile"),)),
)


class CrossingToy(Toy):
    def space(self, workload: Workload, arch: Architecture) -> Space:
        return Space(VARIANTS)


def crossing(workload: Workload) -> float:
    """The tokens at which the best of both take equally long."""
    return workload["n"] / 20


def true_us(workload: Workload, config: Config) -> float:
    """The microseconds that a launch takes: simt's grow faster with the tokens, and away from each variant's best
    value, which moves by one with each doubling of the tokens."""
    octaves = math.log2(workload.tokens)
    if config.variant == "stock":
        return 9.0 + 0.2 * workload.tokens / crossing(workload)
    (value,) = config.params.values()
    ratio = workload.tokens / crossing(workload)
    best = 2.0 + ratio**0.4 if config.variant == "simt" else 2.0 + ratio**0.1
    return best * (1 + 0.02 * abs(int(value) - 1 - octaves))


def samples_us(workload: Workload, config: Config, seed: int = 0) -> tuple[float, ...]:
    """Interleaved: what slows the device slows all configs of a workload alike, and each has 0.3 % of its own."""
    shared = random.Random(f"{workload} {seed}")
    own = random.Random(f"{workload} {config} {seed}")
    return tuple(
        true_us(workload, config) * (1 + abs(shared.gauss(0, 0.02))) * (1 + own.gauss(0, 0.003)) for _ in range(15)
    )
