"""The router's kernels on a GPU: every value of every parameter where tokens, rows and experts end within a tile."""

from __future__ import annotations

import math
import re
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
CROWDED = re.compile(r"(\d+) blocks wait for one another, and this GPU holds (\d+) at once")
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
    space = ROUTER.space(workload, arch)
    blocks = {config: math.prod(ROUTER.launch(workload, config).grid) for config in space.configs}
    # The library goes first: what its graph writes to is not where references are kept.
    assert runner.measure(Request(workload, Config.of("torch", {}), REGIME, None)).status is Status.OK
    ran: list[Config] = []
    crowded: list[Config] = []
    wrong = {}
    fewest = math.inf
    # What registers let an SM hold shows once code is compiled. Values of a config that has too many blocks are tried
    # in others that have fewer.
    while configs := covering(space, 0, ran=ran, refused={one for one in blocks if blocks[one] >= fewest}):
        for config in configs:
            found = runner.measure(Request(workload, config, REGIME, ROUTER.compile(workload, config, arch)))
            too_many = CROWDED.fullmatch(found.reason) if found.status is Status.INFEASIBLE else None
            if too_many and int(too_many[1]) == blocks[config] > int(too_many[2]):
                crowded.append(config)
                fewest = min(fewest, blocks[config])
                continue
            ran.append(config)
            if found.status is not Status.OK:
                wrong[str(config)] = f"{found.status}: {found.reason}"
    assert wrong == {}
    assert len(ran) > len(crowded), list(map(str, crowded))
