"""The compiled reduction kernels, run instruction by instruction on the host: several ranks, launches and orders."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from covering import covering
from ptx_machine import Launches
from ptx_machine import Memory
from ptx_machine import kernel_of
from ptx_machine import run

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import FLAG
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

REDUCTION = operator("reduction")
SM90 = architecture("sm_90a")
LAUNCHES = 4
"""More than there are parities: every slot is used again."""
MOST_STEPS = 2_000_000
"""Twenty times what the longest takes."""
NEGATIVE_ZERO = 0x8000


def compiled_ptx(workload: Workload, config: Config, monkeypatch: pytest.MonkeyPatch) -> str:
    """The PTX that ``compile`` audits."""
    found: list[str] = []
    monkeypatch.setattr("megatune_kernels.artifact.audit", lambda ptx, _: found.append(ptx))
    REDUCTION.compile(workload, config, SM90)
    return found[0]


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def reals(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def drawn(workload: Workload, seed: int) -> np.ndarray:
    """BF16 bits of partials [launches, world, tokens, width]: small integers, with -0.0 alone and in pairs."""
    random_ = np.random.default_rng(seed)
    shape = (LAUNCHES, workload.world, workload.tokens, workload["width"])
    bits = bf16(random_.integers(-12, 13, shape))
    bits[random_.random(shape) < 0.1] = NEGATIVE_ZERO
    bits.reshape(-1, 2)[random_.random(bits.size // 2) < 0.1] = NEGATIVE_ZERO
    return bits


def results(workload: Workload, config: Config, ptx: str, partials: np.ndarray, seed: int) -> tuple[Any, Any]:
    """Outputs [launches, world, tokens, width] in bits, and the ranks' workspaces at the end."""
    world, size = workload.world, 2 * workload.tokens * workload["width"]
    workspace, shape = REDUCTION.workspace(workload, config), REDUCTION.launch(workload, config)
    step = -(-max(size, workspace.bytes) // 128) * 128
    # Heaps, then partials and outputs of each launch.
    memory = Memory(step * world * (1 + 2 * LAUNCHES))

    def place(kind: int, launch: int, rank: int) -> int:
        return step * (world * (0 if kind == 0 else 1 + 2 * launch + kind - 1) + rank)

    for rank in range(world):
        memory.store_all(place(0, 0, rank), np.full(workspace.bytes // 4, workspace.armed, np.uint32))
        for launch in range(LAUNCHES):
            memory.store_all(place(1, launch, rank), partials[launch, rank].ravel().view(np.uint32))
    kernel = kernel_of(ptx)
    ranks = []
    for rank in range(world):
        heaps = [place(0, 0, (rank + i) % world) for i in range(world)]
        # Launch numbers need not begin with 0.
        calls = [
            [place(1, launch, rank), place(2, launch, rank), *heaps, rank, launch + seed % 60]
            for launch in range(LAUNCHES)
        ]
        ranks.append(Launches(kernel, shape.grid[0], shape.block[0], calls))
    run(memory, ranks, random.Random(seed), MOST_STEPS)
    outputs = np.empty_like(partials)
    for rank in range(world):
        for launch in range(LAUNCHES):
            words = memory.load_all(place(2, launch, rank), size)
            outputs[launch, rank] = words.view(np.uint16).reshape(partials.shape[2:])
    return outputs, [memory.load_all(place(0, 0, rank), workspace.bytes) for rank in range(world)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("width", "tokens", "world"), [(512, 5, 2), (960, 3, 3), (384, 18, 2), (1024, 2, 4)], ids=lambda value: str(value)
)
def test_every_rank_has_the_exact_sum_of_every_launch(
    width: int, tokens: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = REDUCTION.workload({"width": width}, tokens, world=world)
    for seed, config in enumerate(covering(REDUCTION.space(workload, SM90), seed=1)):
        partials = drawn(workload, seed)
        outputs, heaps = results(workload, config, compiled_ptx(workload, config, monkeypatch), partials, seed)
        # Of integers, and without -0.0.
        expected = bf16(reals(partials).sum(axis=1) + np.float32(0.0))
        for rank in range(world):
            assert (outputs[:, rank] == expected).all(), config
        if config.params["signal"] == FLAG:
            continue
        for heap in heaps:
            assert (heap == ARMED[str(config.params["signal"])]).all(), config
