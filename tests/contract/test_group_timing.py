"""How a rank prepares jobs on its GPU, over one that only keeps a diary."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.workers.failures import Infeasible
from megatune_tuner.workers.failures import WrongResult
from megatune_tuner.workers.gpu_messages import Job

pytestmark = pytest.mark.torch

ARTIFACT = Artifact("key", "sm_90a", "entry", b"", 0, 0)
N = 4096
BLOCKS = N // 256
SMS = 4


@dataclass
class Diary:
    """What was enqueued, and what the GPU is like."""

    launched: list[tuple[Any, ...]] = field(default_factory=list)
    blocks_a_multiprocessor: int = BLOCKS
    peers: bool = True
    wrong: str = ""


class Graph:
    def __init__(self, diary: Diary, launches: list[tuple[Any, ...]]) -> None:
        self.diary, self.launches = diary, launches

    def launch(self, stream: Any) -> None:
        self.diary.launched += self.launches

    def close(self) -> None:
        self.launches.clear()


class Driver:
    """Memory handles are addresses."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_READY=600)
    CUipcMem_flags = SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=SimpleNamespace(value=1))
    CUdeviceptr = int

    class CUipcMemHandle:
        def __init__(self) -> None:
            self.raw = ctypes.create_string_buffer(64)

        def getPtr(self) -> int:  # noqa: N802 - the driver's name
            return ctypes.addressof(self.raw)

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def cuIpcGetMemHandle(self, pointer: int) -> tuple[int, Any]:  # noqa: N802 - the driver's name
        handle = self.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), pointer.to_bytes(64, "little"), 64)
        return 0, handle

    def cuIpcOpenMemHandle(self, handle: Any, flags: int) -> tuple[int, int]:  # noqa: N802 - the driver's name
        assert flags == 1
        return 0, int.from_bytes(handle.raw.raw, "little") + 1

    def cuDeviceGet(self, index: int) -> tuple[int, int]:  # noqa: N802 - the driver's name
        return 0, index

    def cuDeviceCanAccessPeer(self, gpu: int, peer: int) -> tuple[int, bool]:  # noqa: N802 - the driver's name
        return 0, gpu != peer and self.diary.peers

    def cuMemsetD32Async(self, pointer: int, word: int, words: int, stream: Any) -> tuple[int]:  # noqa: N802
        self.diary.launched.append(("armed", pointer, word, words))
        return (0,)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def ranks(diary: Diary, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a rank of a world."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from megatune_tuner.workers import group_timing

    def capture(stream: Any, run: Any) -> Graph:
        before, diary.launched = diary.launched, []
        run(stream)
        launches, diary.launched = diary.launched, before
        return Graph(diary, launches)

    def launch(stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        diary.launched.append(tuple(each.value if isinstance(each, ctypes.c_int32) else each for each in arguments))

    occupancy = SimpleNamespace(max_active_blocks_per_multiprocessor=lambda *_: diary.blocks_a_multiprocessor)
    kernel = SimpleNamespace(occupancy=occupancy)
    monkeypatch.setattr(group_timing, "driver", Driver(diary))
    monkeypatch.setattr(group_timing, "capture", capture)
    # A torch that was built without a GPU has no pools.
    memory = SimpleNamespace(used=nullcontext, close=lambda: None)
    monkeypatch.setattr(group_timing, "Apart", lambda: memory)
    monkeypatch.setattr(group_timing, "launch", launch)
    monkeypatch.setattr(group_timing, "load", lambda *_: (kernel, None))
    monkeypatch.setattr(group_timing.torch.cuda, "set_stream", lambda _: None)
    from faulty_sum import SumBuffers

    class Buffers(SumBuffers):
        """On the CPU, where no kernel writes the outputs."""

        def __init__(self, workload: Workload, *each: Any) -> None:
            super().__init__(workload["n"], *each, device="cpu")

        def check(self) -> str:
            return diary.wrong

    monkeypatch.setattr(operator("faulty_sum"), "group_inputs", Buffers, raising=False)

    def make(number: int, world: int, *, shared: bool = False) -> Any:
        rank: Any = object.__new__(group_timing.GpuRank)
        rank._number, rank._world, rank._shared, rank._first_gpu = number, world, shared, 4
        rank._device = SimpleNamespace(
            device=SimpleNamespace(
                device_id=4 + number,
                pci_bus_id=f"bus {number}",
                properties=SimpleNamespace(multiprocessor_count=SMS),
            ),
            links_to=lambda bus: {"bus 0": 18, "bus 1": 12, "bus 2": 18}[bus],
        )
        rank._stream = rank._handle = rank._torch_stream = None
        rank._heap = 100 * (number + 1)
        rank._heaps = [100 * (other + 1) for other in range(world)]
        rank._held = None
        return rank

    return make


def job(variant: str = "good", *, graph: bool = True, world: int = 2, n: int = N) -> Job:
    workload = operator("faulty_sum").workload({"n": n}, 1, world=world)
    artifact = None if variant == "nccl" else ARTIFACT
    return Job(workload, Config.of(variant, {"unit": 1}), artifact, cold=True, graph=graph)


@pytest.mark.parametrize("graph", [True, False])
def test_launches_have_pointers_then_scalars_and_numbers_without_a_gap(ranks: Any, diary: Diary, graph: bool) -> None:
    rank = ranks(1, 2)
    loaded = rank.load(job(graph=graph))
    assert loaded.buffers.copies == 6
    assert loaded.launches % 6 == 0
    x, y = zip(*(loaded.buffers.pointers(copy)[:2] for copy in range(2)), strict=True)
    rank.arm(loaded)
    assert diary.launched == [("armed", 200, 0xFFFFFFFF, 3 * 2 * N)]
    diary.launched.clear()
    rank.verify(loaded)
    assert diary.launched == [(x[i % 2], y[i % 2], 200, 100, 1, i) for i in range(6)]
    diary.launched.clear()
    rank.replay(loaded)
    assert diary.launched == [(x[0], y[0], 200, 100, 1, i % 6) for i in range(loaded.launches)]
    rank.close(loaded)
    with pytest.raises(AssertionError):
        rank.replay(loaded)


def test_what_has_to_be_cold_takes_turns(ranks: Any, diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = operator("faulty_sum")
    monkeypatch.setattr(tuned, "rotating_bytes", lambda _: 100, raising=False)
    rank = ranks(1, 2)
    loaded = rank.load(job())
    assert loaded.flush_bytes == 100 * loaded.buffers.sets
    x, y = zip(*(loaded.buffers.pointers(copy)[:2] for copy in range(2)), strict=True)
    rank.replay(loaded)
    assert diary.launched == [(x[i % 2], y[i % 2], 200, 100, 1, i % 6) for i in range(loaded.launches)]
    warm = replace(job(), cold=False)
    loaded = rank.load(warm)
    diary.launched.clear()
    rank.replay(loaded)
    assert loaded.flush_bytes == 0
    assert {pointers[:2] for pointers in diary.launched} == {(x[0], y[0])}


def test_a_chain_runs_its_reduction_with_the_others_and_each_part_alone(
    ranks: Any, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatune_kernels.prefetch.buffers import GroupChainBuffers
    from megatune_tuner.workers import gpu_chain

    def launch(stream: Any, config: Any, kernel: str, *arguments: Any) -> None:
        values = tuple(each.value if isinstance(each, ctypes.c_int32) else each for each in arguments)
        diary.launched.append((kernel, *values))

    checked = []
    monkeypatch.setattr(gpu_chain, "launch", launch)
    monkeypatch.setattr(gpu_chain, "load", lambda artifact, *_: (artifact.key, None))
    monkeypatch.setattr("megatune_tuner.workers.group_timing.check_resident", lambda *each: checked.append(each[0]))
    tuned = operator("prefetch")
    workload = tuned.workload({"width": 64, "n1": 1024, "k1": 1024, "n2": 64, "k2": 64}, 2, world=2)
    monkeypatch.setattr(tuned, "group_inputs", lambda *each: GroupChainBuffers(*each, device="cpu"), raising=False)
    params = {"depth_mib": 1, "grid": 1, "chunk_kib": 16, "carveout": 0, "start_percent": 0, "consumer": "default"}
    config = Config.of("prefetch", {**params, "pdl": False})
    names = [part.name for part in tuned.parts(workload, config)]
    artifacts = tuple(replace(ARTIFACT, key=name) for name in names)
    rank = ranks(1, 2)
    stream = SimpleNamespace(record=lambda _: None, wait=lambda _: None)
    rank._stream, rank._beside = stream, []
    rank._device.device.create_stream = lambda: stream
    rank._device.device.create_event = object
    rank._device.l2_bytes = 1 << 20
    chained = Job(workload, config, None, cold=True, graph=True, parts=artifacts)
    loaded = rank.load(chained)
    assert checked == ["reduction"]
    assert loaded.flush_bytes == 2 * tuned.rotating_bytes(workload)
    rank.arm(loaded)
    assert diary.launched.pop()[:2] == ("armed", 200)
    rank.verify(loaded)
    assert [each[0] for each in diary.launched] == names * 60
    reductions = [each for each in diary.launched if each[0] == "reduction"]
    # Its partial and sum, the heaps of this rank and of its peer, the rank and the number of the launch.
    assert [each[3:] for each in reductions] == [(200, 100, 1, number) for number in range(60)]
    assert len({each[2] for each in reductions}) == 60
    first = [each[2] for each in diary.launched if each[0] == "consumer1"]
    assert first == first[:2] * 30
    diary.launched.clear()
    rank.replay(loaded)
    assert len(diary.launched) == loaded.launches * len(names)
    alone = {each.name: each.launches for each in loaded.alone}
    assert {"reduction", "prefetch", "consumer1 cold"} <= set(alone)
    diary.launched.clear()
    rank.prepare(loaded, "reduction")
    assert diary.launched == []
    rank.replay(loaded, "reduction")
    assert {each[0] for each in diary.launched} == {"reduction"}
    assert [each[-1] for each in diary.launched] == list(range(alone["reduction"]))
    rank.close(loaded)
    assert not loaded.graphs_alone
    with pytest.raises(Infeasible, match="a chain of a group is measured with cold weights"):
        rank.load(replace(chained, cold=False))


def test_operands_of_a_workload_are_kept_until_another_or_a_failure(ranks: Any) -> None:
    rank = ranks(0, 2)
    first = rank.load(job()).buffers
    assert rank.load(job("wrong")).buffers is first
    second = rank.load(job(n=2 * N)).buffers
    assert second is not first
    rank.drop()
    assert rank.load(job(n=2 * N)).buffers is not second


def test_blocks_that_wait_for_one_another_have_to_fit(
    ranks: Any, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary.blocks_a_multiprocessor = BLOCKS // SMS
    assert ranks(0, 2).load(job())
    with pytest.raises(Infeasible, match="16 blocks wait for one another, and a share of 1/2 of this GPU holds 8"):
        ranks(0, 2, shared=True).load(job())
    diary.blocks_a_multiprocessor = 2 * BLOCKS // SMS
    assert ranks(0, 2, shared=True).load(job())
    diary.blocks_a_multiprocessor = BLOCKS // SMS - 1
    with pytest.raises(Infeasible, match="16 blocks wait for one another, and this GPU holds 12 at once"):
        ranks(0, 2).load(job())


def test_a_workspace_has_to_fit(ranks: Any) -> None:
    with pytest.raises(Infeasible, match=r"a workspace of \d+ bytes is larger than the 536870912 that a rank has"):
        ranks(0, 2).load(job("wide"))


def test_a_baseline_needs_a_gpu_for_every_rank(ranks: Any) -> None:
    with pytest.raises(Infeasible, match="nccl needs a GPU for every rank"):
        ranks(0, 2, shared=True).load(job("nccl"))


def test_a_wrong_output_is_said_without_the_rank_that_everybody_adds(ranks: Any, diary: Diary) -> None:
    rank = ranks(1, 2)
    loaded = rank.load(job())
    assert rank.check(loaded) == loaded.buffers.fingerprint()
    diary.wrong = "rank 1: 3 outputs are wrong"
    with pytest.raises(WrongResult, match=r"^3 outputs are wrong"):
        rank.check(loaded)


def test_memory_is_reached_through_handles_and_within_a_process_as_it_is(ranks: Any, diary: Diary) -> None:
    cards = [ranks(number, 3).card() for number in range(3)]
    assert {card["process"] for card in cards} == {os.getpid()}
    own, *others = cards
    for card in others:
        card["process"] += 1
    rank = ranks(0, 3)
    rank.connect([own, *others])
    assert rank._heaps == [100, 201, 301]
    assert rank._links == 12
    diary.peers = False
    with pytest.raises(MegatuneError, match="GPU 4 cannot reach the memory of GPU 5"):
        rank.connect([own, *others])
