"""The projection kernels against float64 where shapes do not fit them: rows, K and tokens that end within a tile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from covering import covering

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import operator
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


@pytest.mark.parametrize(("n", "k", "tokens"), EDGES)
def test_every_value_of_every_parameter_gives_the_right_result(runner: GpuRunner, n: int, k: int, tokens: int) -> None:
    projection = operator("projection")
    workload = projection.workload({"n": n, "k": k}, tokens)
    arch = architecture(runner.target.hardware.arch)
    configs = covering(operator("projection").space(workload, arch), seed=0)
    assert configs
    wrong = {}
    for config in configs:
        artifact = projection.compile(workload, config, arch)
        found = runner.measure(Request(workload, config, Regime("warm", "graph"), artifact))
        if found.status is not Status.OK:
            wrong[str(config)] = f"{found.status}: {found.reason}"
    assert wrong == {}
