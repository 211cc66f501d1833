"""The compiled router kernels, run instruction by instruction on the host, against float64 references."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from ptx_machine import Launches
from ptx_machine import Memory
from ptx_machine import kernel_of
from ptx_machine import run

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

pytestmark = pytest.mark.torch

ROUTER = operator("router_front")
SM90 = architecture("sm_90a")
DIMS = {"experts": 128, "k": 128, "latent": 12, "top": 5}
LAUNCHES = 3
"""More than there are parities."""
MOST_STEPS = 2_000_000
FEW = {"warps": 2, "rows": 16, "k_unroll": 1, "stages": 2, "split_k": 1, "finishers": 1, "pdl": True}


def compiled_ptx(workload: Workload, config: Config, monkeypatch: pytest.MonkeyPatch) -> str:
    """The PTX that ``compile`` audits."""
    found: list[str] = []
    monkeypatch.setattr("megatune_kernels.artifact.audit", lambda ptx, _: found.append(ptx))
    ROUTER.compile(workload, config, SM90)
    return found[0]


class Ranks:
    """Operands of every rank, where the machine's memory has them and where the checks look."""

    def __init__(self, workload: Workload, config: Config) -> None:
        from megatune_kernels.router.buffers import FrontBuffers

        world = workload.world
        self._step = 1 << 17
        self._config, self._workload = config, workload
        heaps = [rank * self._step for rank in range(world)]
        self.buffers = [
            FrontBuffers(workload, LAUNCHES, seed=3, rank=rank, heaps=heaps if world > 1 else (), device="cpu")
            for rank in range(world)
        ]
        self.memory = Memory(self._step * (world + 8 * world * LAUNCHES))
        self._front = ROUTER.launch(workload, config)
        from megatune_kernels.router.geometry import Front

        self._workspace = Front.of(workload, config.variant, config.params).workspace
        self._places: dict[tuple[int, int, int], int] = {}
        at = world * self._step
        for rank in range(world):
            for copy in range(LAUNCHES):
                for i in range(6):
                    self._places[rank, copy, i] = at
                    at += self._step

    def _operands(self, rank: int, copy: int) -> list[Any]:
        held = self.buffers[rank]
        return [held._x, *(each[copy] for each in (held._w, held._bias, held._outputs, held._ids, held._weights))]

    def launches(self, ptx: str, first: int) -> list[Launches]:
        kernel = kernel_of(ptx)
        world = self._workload.world
        found = []
        for rank in range(world):
            calls = []
            for copy in range(LAUNCHES):
                addresses = [self._places[rank, copy, i] for i in range(6)]
                heaps = [(rank + i) % world * self._step for i in range(world)]
                numbers = self._front.scalars if world == 1 else (*self._front.scalars, rank, copy + first)
                calls.append([*addresses, *heaps, *numbers])
            x, y, _ = self._front.grid
            threads = self._front.block[0]
            found.append(Launches(kernel, x, threads, calls, cluster=y, shared_bytes=self._front.shared_bytes))
        return found

    def run(self, ptx: str, seed: int) -> None:
        for rank in range(self._workload.world):
            words = np.full(self._workspace.bytes // 4, self._workspace.armed, np.uint32)
            self.memory.store_all(rank * self._step, words)
            for copy in range(LAUNCHES):
                for i, operand in enumerate(self._operands(rank, copy)):
                    raw = operand.contiguous().view(torch.uint8).numpy().tobytes()
                    raw += bytes(-len(raw) % 4)
                    self.memory.store_all(self._places[rank, copy, i], np.frombuffer(raw, np.uint32))
        run(self.memory, self.launches(ptx, seed % 5), random.Random(seed), MOST_STEPS, leads=True)
        for rank in range(self._workload.world):
            for copy in range(LAUNCHES):
                for i, operand in list(enumerate(self._operands(rank, copy)))[3:]:
                    if not operand.numel():
                        continue
                    size = operand.numel() * operand.element_size()
                    words = self.memory.load_all(self._places[rank, copy, i], -(-size // 4) * 4)
                    raw = np.frombuffer(words.tobytes()[:size], np.uint8).copy()
                    operand.copy_(torch.from_numpy(raw).view(operand.dtype).view(operand.shape))

    @property
    def armed(self) -> int:
        return self._workspace.armed

    def mailboxes_are_armed(self) -> bool:
        heaps = [self.memory.load_all(rank * self._step, self._workspace.bytes) for rank in range(len(self.buffers))]
        return all(bool((heap == self.armed).all()) for heap in heaps)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("variant", "world", "tokens", "more"),
    [
        ("redundant", 1, 3, {"k_unroll": 2}),
        ("redundant", 1, 9, {"finishers": 4, "rows": 32, "stages": 3}),
        ("redundant", 1, 12, {"finishers": 2, "rows": 64, "warps": 4}),
        ("redundant", 1, 16, {"finishers": 2, "rows": 48, "warps": 4}),
        ("redundant", 1, 24, {"finishers": 8, "split_k": 2}),
        ("redundant", 1, 33, {"finishers": 8, "warps": 4}),
        ("redundant", 1, 64, {"finishers": 8, "warps": 4}),
        ("split", 2, 2, {"split_k": 2, "pdl": False}),
    ],
)
def test_every_rank_chooses_as_the_reference_does(
    variant: str, world: int, tokens: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = ROUTER.workload(DIMS, tokens, world=world)
    config = Config.of(variant, {**FEW, **more})
    assert ROUTER.space(workload, SM90).violations(config) == []
    ptx = compiled_ptx(workload, config, monkeypatch)
    ranks = Ranks(workload, config)
    for seed in range(2):
        for held in ranks.buffers:
            held.poison()
            assert "id 0 of token 0 is -1" in held.check() or "latent" in held.check()
        ranks.run(ptx, seed)
        assert [held.check() for held in ranks.buffers] == [""] * world
        assert len({held.fingerprint() for held in ranks.buffers}) == 1
        assert ranks.mailboxes_are_armed()
        for held in ranks.buffers:
            held.refresh()


def test_logits_that_are_equal_or_no_numbers_or_the_sentinel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many candidates as there are experts; the word that mailboxes are armed with; experts without a score."""
    workload = ROUTER.workload({"experts": 128, "k": 64, "latent": 0, "top": 32}, 2)
    config = Config.of("redundant", FEW)
    assert ROUTER.space(workload, SM90).violations(config) == []
    ranks = Ranks(workload, config)
    (held,) = ranks.buffers
    tiny = 2.0**-67
    held._x.zero_()
    held._x[:, :2] = torch.tensor([tiny, 1.0])
    held._w.zero_()
    held._bias.zero_()
    held._w[1, :, 0] = -tiny
    assert int(torch.tensor(-tiny * tiny).view(torch.int32)) == ranks.armed - (1 << 32)
    # Every key is below zero.
    held._bias[1] = torch.arange(128) / 256 - 1
    # Experts 96 to 127 have scores, the others none: zero times infinity, and what a sigmoid makes of -inf.
    held._w[2, :64, 2] = math.inf
    held._w[2, 64:96, 1] = -math.inf
    held._w[2, 96:, 1] = torch.arange(32) - 16
    held._w[2, 99, 1] = math.inf
    with np.errstate(invalid="ignore"):
        ranks.run(compiled_ptx(workload, config, monkeypatch), seed=1)
    assert held._ids[0].tolist() == [list(range(32))] * 2
    assert held._ids[1].tolist() == [list(range(127, 95, -1))] * 2
    assert held._ids[2].tolist() == [[99, *(expert for expert in range(127, 95, -1) if expert != 99)]] * 2
    assert torch.equal(held._weights[:2], torch.full((2, 2, 32), 1 / 32))
    assert held._weights[2, 0, 0] == held._weights[2].max()
    assert ranks.mailboxes_are_armed()
