"""The experts' kernels on a GPU: every value of every parameter, what is not a number, and ids that are none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from covering import covering

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.operator import operator
from megatune_kernels.target import architecture
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner

pytestmark = pytest.mark.gpu

EXPERTS = operator("experts")
SITU = {"beta": 4, "linear_beta": 25}
SHAPES = [
    ({"experts": 32, "k": 3584, "top": 4, "width": 384, **SITU}, "mxfp4", 5, "power_law_1.2"),
    ({"experts": 32, "k": 3584, "top": 4, "width": 192, **SITU}, "mxfp4", 33, "balanced"),
    ({"experts": 40, "k": 3584, "top": 4, "width": 384}, "mxfp4", 64, "same"),
    ({"experts": 24, "k": 2048, "top": 3, "width": 256}, "fp8", 9, "power_law_1.01"),
    ({"experts": 24, "k": 2048, "top": 3, "width": 192}, "bf16", 17, "balanced"),
    ({"experts": 1, "k": 1024, "top": 1, "width": 64}, "bf16", 8, "balanced"),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[GpuRunner]:
    with GpuRunner() as made:
        yield made


@pytest.mark.parametrize(("dims", "dtype", "tokens", "routing"), SHAPES)
def test_every_value_of_every_parameter_gives_the_right_result(
    runner: GpuRunner, dims: dict[str, int], dtype: str, tokens: int, routing: str
) -> None:
    workload = EXPERTS.routed(EXPERTS.workload(dims, tokens, dtype), routing)
    arch = architecture(runner.target.hardware.arch)
    configs = covering(EXPERTS.space(workload, arch), seed=0)
    assert configs
    wrong = {}
    for config in configs:
        made = tuple(EXPERTS.compile(part.workload, part.config, arch) for part in EXPERTS.parts(workload, config))
        one = made[0] if len(made) == 1 else None
        found = runner.measure(Request(workload, config, Regime("warm", "graph"), one, parts=() if one else made))
        if found.status is not Status.OK:
            wrong[str(config)] = f"{found.status}: {found.reason}"
    assert wrong == {}


class Launched:
    """The default of a variant over operands that can be changed."""

    def __init__(self, variant: str) -> None:
        from cuda.core import Device

        from megatune_tuner.workers.gpu_chain import Chain

        device = Device(0)
        device.set_current()
        arch = architecture("sm_{}{}a".format(*device.compute_capability))
        workload = EXPERTS.workload(SHAPES[0][0], 6)
        config = next(c for c in EXPERTS.space(workload, arch).defaults() if c.variant == variant)
        parts = EXPERTS.parts(workload, config)
        self.held: Any = EXPERTS.inputs(workload, 1, 0)
        self._stream = device.create_stream()
        made = [EXPERTS.compile(part.workload, part.config, arch) for part in parts]
        self._chain = Chain(parts, made, self.held, [self._stream], device.create_event, 0)

    def run(self) -> Any:
        """The output [tokens, k]."""
        import torch

        torch.cuda.synchronize()
        self._chain.enqueue(None, 0)
        self._stream.sync()
        return self.held._y[0].float()


@pytest.mark.parametrize("variant", ["per_route", "grouped"])
def test_what_is_no_number_stays_with_its_token(variant: str) -> None:
    launched = Launched(variant)
    before = launched.run().clone()
    assert launched.held.check() == ""
    launched.held.poison()
    launched.held._x[1, 7] = math.nan
    launched.held._x[3] = math.inf
    after = launched.run()
    for token in range(6):
        if token == 1:
            assert bool(after[token].isnan().all())
        elif token != 3:
            assert bool((after[token] == before[token]).all())
    assert not bool((after[3] == before[3]).all())


@pytest.mark.parametrize("variant", ["per_route", "grouped"])
@pytest.mark.parametrize(
    ("found", "told"), [(-1, "is -1: there are 32 experts"), (32, "is 32"), (2**30, "is 1073741824")]
)
def test_an_id_that_is_none_is_told(variant: str, found: int, told: str) -> None:
    launched = Launched(variant)
    launched.held._ids[0, 2, 1] = found
    launched.run()
    assert told in launched.held.check()


def test_an_expert_twice_is_told() -> None:
    launched = Launched("grouped")
    launched.held._ids[0, 2, 1] = launched.held._ids[0, 2, 0]
    launched.run()
    assert launched.held.check() == "a token goes to an expert twice"
