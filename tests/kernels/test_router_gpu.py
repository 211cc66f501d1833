"""The router's kernels on a GPU: every value of every parameter where tokens, rows and experts end within a tile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from covering import covering

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner

pytestmark = pytest.mark.gpu

ROUTER = operator("router_front")
REGIME = Regime("cold", "graph")
SHAPES = [
    ({"experts": 896, "k": 7168, "latent": 448, "top": 16}, 8),
    ({"experts": 128, "k": 2048, "latent": 12, "top": 5}, 9),
    ({"experts": 1024, "k": 4096, "latent": 0, "top": 32}, 33),
    ({"experts": 896, "k": 7168, "latent": 224, "top": 16}, 64),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[GpuRunner]:
    with GpuRunner() as made:
        yield made


@pytest.mark.parametrize(("dims", "tokens"), SHAPES)
def test_every_value_of_every_parameter_gives_the_right_result(
    runner: GpuRunner, dims: dict[str, int], tokens: int
) -> None:
    workload = ROUTER.workload(dims, tokens)
    arch = architecture(runner.target.hardware.arch)
    configs = covering(ROUTER.space(workload, arch), seed=0)
    assert configs
    # The library goes first: what its graph writes to is not where references are kept.
    assert runner.measure(Request(workload, Config.of("torch", {}), REGIME, None)).status is Status.OK
    wrong = {}
    for config in configs:
        found = runner.measure(Request(workload, config, REGIME, ROUTER.compile(workload, config, arch)))
        if found.status is not Status.OK:
            wrong[str(config)] = f"{found.status}: {found.reason}"
    assert wrong == {}
