"""One rank of a group on its GPU: memory that peers reach, graphs of launches, events. Imports torch and cuda.core.

In an emulated group several ranks of one process share a GPU, each with a stream of its own; nothing that enqueues
waits, so that no rank's work waits on the host for that of another, which is enqueued after it.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import timedelta
from functools import cache
from functools import partial
from typing import Any
from typing import cast

import torch
from cuda.bindings import driver
from cuda.core import EventOptions
from cuda.core import launch

from megatune_kernels.buffers import GroupBuffers
from megatune_kernels.buffers import GroupChainBuffers
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.target import Target
from megatune_tuner.workers.failures import Infeasible
from megatune_tuner.workers.failures import WrongResult
from megatune_tuner.workers.gpu_chain import Chain
from megatune_tuner.workers.gpu_device import GpuDevice
from megatune_tuner.workers.gpu_launch import capture
from megatune_tuner.workers.gpu_launch import check_resident
from megatune_tuner.workers.gpu_launch import load
from megatune_tuner.workers.gpu_memory import Apart
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.group_rank import AlonePart
from megatune_tuner.workers.sampling import ASSUMED_BYTES_A_US
from megatune_tuner.workers.sampling import ASSUMED_LAUNCH_US
from megatune_tuner.workers.sampling import MOST_LAUNCHES
from megatune_tuner.workers.sampling import MOST_SAMPLES
from megatune_tuner.workers.sampling import SAMPLE_US
from megatune_tuner.workers.sampling import SEED
from megatune_tuner.workers.sampling import another_process

HEAP_BYTES = 1 << 29
"""What each rank holds for workspaces. Twice what 512 tokens of the widest sum need in a world of 8."""
ASSUMED_LINK_BYTES_A_US = 4.0e5
HANDLE_BYTES = 64
"""``CU_IPC_HANDLE_SIZE`` of cuda.h."""
COPIED_BYTES = 1 << 28
COPIES = 9
LEAVING_S = 5.0
CONNECTING = timedelta(seconds=50)
"""Less than the coordinator's limit: NCCL then says itself what it waits for."""


@dataclass
class Graphs:
    """A job that a rank can replay."""

    job: Job
    buffers: GroupBuffers
    launches: int
    """Of one timed replay."""
    flush_bytes: int = 0
    """Of operands that are cold, between two launches over the same set; 0 where all launches are over the first."""
    armed: tuple[int, int] = (0, 0)
    """Words of the workspace, and what each holds before the first launch."""
    verify: Callable[[], None] | None = None
    """Enqueues a launch over each set of operands."""
    replay: Callable[[], None] | None = None
    """Enqueues ``launches`` launches over the first set, or over all in turns."""
    alone: tuple[AlonePart, ...] = ()
    enqueues_alone: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By name, enqueues the launches of one part of a chain."""
    replays_alone: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Those that are prepared."""
    graphs_alone: list[Any] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    """Kernel and graphs: code that a graph launches is unloaded with its kernel."""


class GpuRank:
    """One rank. Keeps the operands of the last workload."""

    def __init__(self, number: int, world: int, *, first_gpu: int, shared: bool, store: str) -> None:
        """
        :param first_gpu: the GPU of rank 0; the others follow, or share it when ``shared``.
        :param store: a file that is not there yet, through which libraries connect the ranks.
        :raises MegatuneError: where there is no such GPU, or it is of no use.
        """
        self._number = number
        self._world = world
        self._shared = shared
        self._first_gpu = first_gpu
        self._store = store
        self._device = _device(first_gpu if shared else first_gpu + number)
        self._known: set[int] = set()
        if number == 0 or not shared:
            self._wait_for_others()
        self._stream = self._device.device.create_stream()
        self._handle = driver.CUstream(int(self._stream.handle))
        self._torch_stream = torch.cuda.ExternalStream(int(self._stream.handle))
        options = EventOptions(timing_enabled=True)
        self._events = [self._device.device.create_event(options) for _ in range(2 * MOST_SAMPLES)]
        self._heap = int(_asked(driver.cuMemAlloc(HEAP_BYTES)))
        self._heaps: list[int] = []
        self._beside: list[Any] = []
        """Streams that parts of chains run on beside the first."""
        self._links = 0
        self._held: tuple[Workload, GroupBuffers] | None = None

    def card(self) -> dict[str, Any]:
        handle = _asked(driver.cuIpcGetMemHandle(driver.CUdeviceptr(self._heap)))
        return {
            "process": os.getpid(),
            "address": self._heap,
            "handle": ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES).hex(),
            "bus": self._device.device.pci_bus_id,
        }

    def connect(self, cards: Sequence[dict[str, Any]]) -> None:
        self._heaps = [self._reached(rank, card) for rank, card in enumerate(cards)]
        if not self._shared:
            buses = [card["bus"] for rank, card in enumerate(cards) if rank != self._number]
            self._links = min(self._device.links_to(bus) for bus in buses)

    def target(self) -> Target:
        # All ranks have reached each other's memory, for which they may be listed as computing on this GPU.
        self._known = set(self._device.running())
        target = self._device.target()
        links = "emulated" if self._shared else f"nvlink-{self._links}" if self._links else "pcie"
        return replace(target, hardware=replace(target.hardware, links=links, world=self._world))

    def facts(self) -> dict[str, float]:
        """Bytes a µs that a copy writes into the next rank's memory, while all ranks do so."""
        if self._shared:
            return {}
        peer, own = (driver.CUdeviceptr(self._heaps[(self._number + step) % self._world]) for step in (1, 0))
        for i in range(COPIES):
            self.mark(2 * i)
            _asked(driver.cuMemcpyAsync(peer, own, COPIED_BYTES, self._handle))
            self.mark(2 * i + 1)
        self._stream.sync()
        return {"link_bytes_a_us": COPIED_BYTES / min(self.times(COPIES))}

    def load(self, job: Job) -> Graphs:
        self._turn()
        tuned = operator(job.workload.operator)
        if not job.is_compiled and self._shared:
            raise Infeasible(f"{job.config.variant} needs a GPU for every rank, as the runner group has")
        buffers = self._buffers(job.workload)
        cost = tuned.cost(job.workload, job.config)
        memory_us, link_us = cost.memory_bytes / ASSUMED_BYTES_A_US, cost.link_bytes / ASSUMED_LINK_BYTES_A_US
        guess_us = ASSUMED_LAUNCH_US + memory_us + link_us
        launches = min(MOST_LAUNCHES, math.ceil(SAMPLE_US / guess_us))
        flush_bytes = buffers.sets * tuned.rotating_bytes(job.workload) if job.cold else 0
        loaded = Graphs(job, buffers, -(-launches // buffers.copies) * buffers.copies, flush_bytes)
        if job.parts:
            self._prepare(loaded, self._chain(loaded))
        elif job.artifact is not None:
            self._prepare(loaded, self._kernel(loaded))
        return loaded

    def join(self, loaded: Graphs) -> None:
        """Connect what a library's call over all ranks needs, and make the call once outside of a graph."""
        if loaded.job.is_compiled:
            return
        self._turn()
        self._connect_libraries()
        job, buffers = loaded.job, loaded.buffers
        tuned = operator(job.workload.operator)

        def enqueue(stream: Any, copy: int, operands: int) -> None:
            tuned.baseline(job.config.variant, job.workload, buffers, operands)

        # As libraries make what they need when first called, which a graph must not hold.
        enqueue(self._stream, 0, 0)
        self._stream.sync()
        self._prepare(loaded, enqueue)

    def arm(self, loaded: Graphs) -> None:
        words, word = loaded.armed
        if words:
            _asked(driver.cuMemsetD32Async(driver.CUdeviceptr(self._heap), word, words, self._handle))

    def renew(self, loaded: Graphs) -> None:
        self._turn()
        loaded.buffers.refresh()

    def spoil(self, loaded: Graphs) -> None:
        self._turn()
        loaded.buffers.poison()

    def verify(self, loaded: Graphs) -> None:
        self._turn()
        assert loaded.verify is not None
        loaded.verify()

    def check(self, loaded: Graphs) -> int:
        self._turn()
        wrong = loaded.buffers.check()
        if wrong:
            raise WrongResult(wrong.removeprefix(f"rank {self._number}: "))
        # Libraries add in an order of each rank's own.
        return loaded.buffers.fingerprint() if loaded.job.is_compiled else 0

    def prepare(self, loaded: Graphs, part: str) -> None:
        if part in loaded.replays_alone:
            return
        self._turn()
        enqueue = loaded.enqueues_alone[part]
        if loaded.job.graph:
            graph = capture(self._stream, lambda _: enqueue())
            loaded.graphs_alone.append(graph)
            loaded.replays_alone[part] = partial(graph.launch, self._stream)
        else:
            loaded.replays_alone[part] = enqueue

    def replay(self, loaded: Graphs, part: str = "") -> None:
        self._turn()
        replay = loaded.replays_alone[part] if part else loaded.replay
        assert replay is not None
        replay()

    def mark(self, event: int) -> None:
        self._stream.record(self._events[event])

    def times(self, count: int) -> list[float]:
        return [(self._events[2 * i + 1] - self._events[2 * i]) * 1e3 for i in range(count)]

    def is_idle(self) -> bool:
        (result,) = driver.cuStreamQuery(self._handle)
        if result == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _asked((result,))
        return True

    def condition(self) -> tuple[bool, int]:
        return self._device.throttled(), self._device.sm_clock_mhz()

    def others(self) -> list[int]:
        return [pid for pid in self._device.running() if pid not in self._known]

    def drop(self) -> None:
        self._held = None
        torch.cuda.empty_cache()

    def close(self, loaded: Graphs) -> None:
        loaded.verify = loaded.replay = None
        loaded.replays_alone.clear()
        loaded.enqueues_alone.clear()
        for graph in loaded.graphs_alone:
            graph.close()
        loaded.graphs_alone.clear()
        for one in reversed(loaded.held):
            one.close()
        loaded.held.clear()

    def _wait_for_others(self) -> None:
        """Give processes that were killed the time to leave.

        :raises MegatuneError: when another process computes on the GPU and stays.
        """
        until = time.monotonic() + LEAVING_S
        while others := self._device.others():
            if time.monotonic() > until:
                raise MegatuneError(another_process(others[0]))
            time.sleep(0.2)

    def _turn(self) -> None:
        """Let torch enqueue on this rank's stream."""
        torch.cuda.set_stream(self._torch_stream)

    def _reached(self, rank: int, card: dict[str, Any]) -> int:
        """The address of another rank's memory in this process."""
        if card["process"] == os.getpid():
            return int(card["address"])
        gpu, peer = self._first_gpu + self._number, self._first_gpu + rank
        devices = [_asked(driver.cuDeviceGet(index)) for index in (gpu, peer)]
        if not _asked(driver.cuDeviceCanAccessPeer(*devices)):
            raise MegatuneError(f"GPU {gpu} cannot reach the memory of GPU {peer}: see its links in megatune doctor")
        handle = driver.CUipcMemHandle()
        ctypes.memmove(int(handle.getPtr()), bytes.fromhex(card["handle"]), HANDLE_BYTES)
        lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(_asked(driver.cuIpcOpenMemHandle(handle, lazily.value)))

    def _buffers(self, workload: Workload) -> GroupBuffers:
        if self._held is None or self._held[0] != workload:
            self._held = None
            torch.cuda.empty_cache()
            tuned = operator(workload.operator)
            self._held = (workload, tuned.group_inputs(workload, self._number, self._heaps, SEED))
        return self._held[1]

    def _kernel(self, loaded: Graphs) -> Callable[[Any, int, int], None]:
        """What enqueues launch number ``copy`` over a set of operands; refused when its blocks would wait for ever."""
        job, buffers = loaded.job, loaded.buffers
        assert job.artifact is not None
        self._make_room(loaded)
        shape = operator(job.workload.operator).launch(job.workload, job.config)
        kernel, config = load(job.artifact, shape, self._device.device.device_id)
        if shape.resident:
            self._check_resident(kernel, config, shape)
        pointers = [buffers.pointers(copy) for copy in range(buffers.copies)]
        fixed = [ctypes.c_int32(value) for value in shape.scalars]
        running = [[ctypes.c_int32(value) for value in buffers.scalars(copy)] for copy in range(buffers.copies)]

        def enqueue(stream: Any, copy: int, operands: int) -> None:
            launch(stream, config, kernel, *pointers[operands], *fixed, *running[copy])

        return enqueue

    def _make_room(self, loaded: Graphs) -> None:
        """Find the room of the config's workspace at the beginning of the heap.

        :raises Infeasible: when it is too large.
        """
        job = loaded.job
        workspace = operator(job.workload.operator).workspace(job.workload, job.config)
        if workspace.bytes > HEAP_BYTES:
            raise Infeasible(f"a workspace of {workspace.bytes} bytes is larger than the {HEAP_BYTES} that a rank has")
        loaded.armed = (-(-workspace.bytes // 4), workspace.armed)

    def _check_resident(self, kernel: Any, config: Any, shape: Launch) -> None:
        shares = self._world if self._shared else 1
        check_resident(kernel, config, shape, self._device.device, self._stream, shares)

    def _chain(self, loaded: Graphs) -> Callable[[Any, int, int], None]:
        """What enqueues launch number ``copy`` of a chain, and its parts alone.

        :raises Infeasible: for warm weights: every launch has a number and weights of its own.
        """
        if not loaded.job.cold:
            raise Infeasible("a chain of a group is measured with cold weights: set regime.weights to cold")
        job, buffers = loaded.job, cast(GroupChainBuffers, loaded.buffers)
        self._make_room(loaded)
        parts = operator(job.workload.operator).parts(job.workload, job.config)
        while len(self._beside) < max(part.stream for part in parts):
            self._beside.append(self._device.device.create_stream())
        chain = Chain(
            parts,
            job.parts,
            buffers,
            [self._stream, *self._beside],
            self._device.device.create_event,
            self._device.device.device_id,
            buffers.part_scalars,
            self._check_resident,
        )
        for alone in chain.alone(self._device.l2_bytes):
            loaded.alone += (AlonePart(alone.name, alone.key, alone.launches),)
            loaded.enqueues_alone[alone.name] = alone.enqueue
        return lambda stream, copy, _: chain.enqueue(stream, copy)

    def _prepare(self, loaded: Graphs, enqueue: Callable[[Any, int, int], None]) -> None:
        """Make the replays: one over each set of operands, and a longer one whose launch numbers run on.

        That is over the first set alone, which the predecessor would have left in the L2, unless the operator has
        operands that are cold.
        """
        copies = loaded.buffers.copies
        rotates = loaded.flush_bytes > 0

        def verify(stream: Any) -> None:
            for copy in range(copies):
                enqueue(stream, copy, copy)

        def replay(stream: Any) -> None:
            for i in range(loaded.launches):
                enqueue(stream, i % copies, i % copies if rotates else 0)

        loaded.held.append(_Code(enqueue))
        if not loaded.job.graph:
            loaded.verify, loaded.replay = partial(verify, self._stream), partial(replay, self._stream)
            return
        memory = Apart()
        loaded.held.append(memory)
        with memory.used():
            graphs = [capture(self._stream, run) for run in (verify, replay)]
        loaded.held += graphs
        loaded.verify, loaded.replay = (partial(graph.launch, self._stream) for graph in graphs)

    def _connect_libraries(self) -> None:
        distributed = torch.distributed
        if not distributed.is_initialized():
            distributed.init_process_group(
                "nccl",
                init_method=f"file://{self._store}",
                rank=self._number,
                world_size=self._world,
                timeout=CONNECTING,
                device_id=torch.device("cuda", self._device.device.device_id),
            )


@dataclass
class _Code:
    """Keeps a kernel until its graphs are gone."""

    enqueue: Callable[[Any, int, int], None] | None

    def close(self) -> None:
        self.enqueue = None


_device = cache(GpuDevice)


def _asked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver gives.

    :raises RuntimeError: in the driver's words.
    """
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(status.name)
    return values[0] if values else None
