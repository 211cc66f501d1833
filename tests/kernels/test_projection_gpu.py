"""The projection kernels against float64 where shapes do not fit them: rows, K and tokens that end within a tile."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture
from megatune_kernels.target import architecture
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner

pytestmark = pytest.mark.gpu

EDGES = [
    # n, k, tokens
    (1, 1024, 1),
    (7, 1096, 3),
    (130, 2104, 5),
    (257, 7176, 8),
    (1, 512, 9),
    (33, 2080, 17),
    (129, 7200, 33),
    (2112, 1536, 64),
    # Offsets in w beyond 32 bits.
    (163840, 16384, 2),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[GpuRunner]:
    with GpuRunner() as made:
        yield made


def covering(workload: Workload, arch: Architecture) -> list[Config]:
    """Legal configs, so that each value of each parameter of each variant is in one of them."""
    order = list(operator("projection").space(workload, arch).configs)
    random.Random(0).shuffle(order)
    seen: set[tuple[str, str, object]] = set()
    chosen = []
    for config in order:
        values = {(config.variant, name, value) for name, value in config.items}
        if not values <= seen:
            seen |= values
            chosen.append(config)
    return chosen


@pytest.mark.parametrize(("n", "k", "tokens"), EDGES)
def test_every_value_of_every_parameter_gives_the_right_result(runner: GpuRunner, n: int, k: int, tokens: int) -> None:
    projection = operator("projection")
    workload = projection.workload({"n": n, "k": k}, tokens)
    arch = architecture(runner.target.hardware.arch)
    configs = covering(workload, arch)
    assert configs
    wrong = {}
    for config in configs:
        artifact = projection.compile(workload, config, arch)
        found = runner.measure(Request(workload, config, Regime("warm", "graph"), artifact))
        if found.status is not Status.OK:
            wrong[str(config)] = f"{found.status}: {found.reason}"
    assert wrong == {}
