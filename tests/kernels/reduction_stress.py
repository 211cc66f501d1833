"""Ranks of a reduction as streams of one GPU: ``python reduction_stress.py WORLD LAUNCHES < JOBS``.

A job is a workload and a config; for each comes a line with what was found. Everything else happens on the GPU: before
some launches the partials are made from rank, launch and place, behind them every output is compared with the one
right sum, bit by bit, and overwritten. Ranks start with delays of their own. A hang is for the caller to end.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from cuda.core import Device
from cuda.core import LaunchConfig
from cuda.core import Program
from cuda.core import ProgramOptions
from cuda.core import launch

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.reduction.buffers import COPIES
from megatune_kernels.reduction.buffers import EXACT
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture
from megatune_kernels.target import architecture
from megatune_tuner.workers.gpu_launch import capture
from megatune_tuner.workers.gpu_launch import load

TOGETHER = 12
"""Launches in a row, each over partials of its own, between which a rank does nothing else."""
BLOCKS = 4
THREADS = 256
SHARE = 4
"""Of the GPU at most a quarter waits, or the kernels of the test would find no room."""
REPLAYS_AHEAD = 8
FOUND = ("wrong", "launch", "element", "got", "expected")

SOURCE = """
__device__ unsigned mixed(unsigned x) {
    x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; return x ^ x >> 16;
}
__device__ float value(unsigned rank, unsigned launch, unsigned element, int largest) {
    unsigned key = mixed(launch * 0x9e3779b9u + rank + 1);
    unsigned own = mixed(element ^ key), pair = mixed(element / 2 ^ key ^ 0x55555555u);
    // Two -0.0 in a word are what a mailbox is armed with.
    if (pair % 16 == 0 || own % 16 == 0) return -0.0f;
    return (float)(int(own / 16 % (2 * largest + 1)) - largest);
}
__device__ unsigned short bits(float x) { return __float_as_uint(x) >> 16; }

extern "C" __global__ void fill(unsigned short* partials, const unsigned* done, int first, int elements, int rank,
                                int largest, int launches) {
    unsigned chance = mixed((*done + first) * 31 + rank * 0x10001);
    if (chance % 4 == 0) {
        long long until = clock64() + chance / 4 % 40000;
        while (clock64() < until) {}
    }
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < launches * elements; i += gridDim.x * blockDim.x)
        partials[i] = bits(value(rank, *done + first + i / elements, i % elements, largest));
}
extern "C" __global__ void check(unsigned short* outputs, const unsigned* done, int first, int elements, int world,
                                 int largest, int launches, unsigned long long* found) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < launches * elements; i += gridDim.x * blockDim.x) {
        unsigned number = *done + first + i / elements;
        float sum = 0.0f;
        for (int rank = 0; rank < world; rank++) sum += value(rank, number, i % elements, largest);
        if (outputs[i] != bits(sum) && atomicAdd(found, 1ull) == 0) {
            found[1] = number; found[2] = i % elements; found[3] = outputs[i]; found[4] = bits(sum);
        }
        outputs[i] = 0xffff;
    }
}
extern "C" __global__ void advance(unsigned* done, int launches) { *done += launches; }
"""


def int32(*values: int) -> list[ctypes.c_int32]:
    return [ctypes.c_int32(value) for value in values]


@dataclass
class Rank:
    stream: Any
    partials: torch.Tensor
    outputs: torch.Tensor
    done: torch.Tensor
    """Launches so far: a word, as the kernels count."""
    found: torch.Tensor
    graph: Any = None


class Stress:
    def __init__(self, world: int) -> None:
        torch.cuda.set_device(0)
        self._device = Device(0)
        self._device.set_current()
        major, minor = self._device.compute_capability
        self.arch: Architecture = architecture(f"sm_{major}{minor}a")
        self._code = Program(SOURCE, "c++", ProgramOptions(arch=self.arch.name)).compile("cubin")
        self._fill, self._check, self._advance = (self._code.get_kernel(name) for name in ("fill", "check", "advance"))
        self._world = world
        self._streams = [self._device.create_stream() for _ in range(world)]

    def run(self, workload: Workload, config: Config, launches: int, seed: int) -> dict[str, Any]:
        """``launches`` of every rank, rounded up to whole graphs.

        :returns: how many outputs were wrong, and of the first one which launch and element; or why it cannot run.
        """
        tuned = operator("reduction")
        shape, workspace = tuned.launch(workload, config), tuned.workspace(workload, config)
        artifact = tuned.compile(workload, config, self.arch)
        kernel, how = load(artifact, shape, self._device.device_id)
        a_multiprocessor = kernel.occupancy.max_active_blocks_per_multiprocessor(shape.block[0], shape.shared_bytes)
        room = a_multiprocessor * int(self._device.properties.multiprocessor_count)
        if SHARE * self._world * shape.grid[0] > room:
            return {"skipped": f"{self._world} times {shape.grid[0]} blocks are more than 1/{SHARE} of {room}"}
        heaps = [
            torch.full((workspace.bytes // 4,), ctypes.c_int32(workspace.armed).value, dtype=torch.int32, device="cuda")
            for _ in range(self._world)
        ]
        assert all(heap.data_ptr() % workspace.alignment == 0 for heap in heaps)
        elements = workload.tokens * workload["width"]
        ranks = [
            Rank(
                stream,
                torch.zeros(TOGETHER, elements, dtype=torch.bfloat16, device="cuda"),
                torch.zeros(TOGETHER, elements, dtype=torch.bfloat16, device="cuda"),
                torch.zeros(1, dtype=torch.int32, device="cuda"),
                torch.zeros(len(FOUND), dtype=torch.int64, device="cuda"),
            )
            for stream in self._streams
        ]
        for number, rank in enumerate(ranks):

            def enqueue(stream: Any, number: int = number, rank: Rank = rank) -> None:
                self._enqueue(stream, number, rank, heaps, kernel, how, elements)

            rank.graph = capture(rank.stream, enqueue)
        torch.cuda.synchronize()
        chance = random.Random(seed)
        replays = -(-launches // COPIES)
        for replay in range(replays):
            order = list(ranks)
            chance.shuffle(order)
            for rank in order:
                rank.graph.launch(rank.stream)
            if replay % REPLAYS_AHEAD == 0:
                for rank in ranks:
                    rank.stream.sync()
        torch.cuda.synchronize()
        found = [dict(zip(FOUND, rank.found.tolist(), strict=True)) for rank in ranks]
        counted = {int(rank.done.item()) for rank in ranks}
        for rank in ranks:
            rank.graph.close()
        return {"launches": replays * COPIES, "counted": sorted(counted), "ranks": found}

    def _enqueue(
        self, stream: Any, number: int, rank: Rank, heaps: list[torch.Tensor], kernel: Any, how: Any, elements: int
    ) -> None:
        simple = LaunchConfig(grid=(BLOCKS, 1, 1), block=(THREADS, 1, 1))
        single = LaunchConfig(grid=(1, 1, 1), block=(1, 1, 1))
        largest = EXACT // self._world
        done, found = rank.done.data_ptr(), rank.found.data_ptr()
        peers = [heaps[(number + i) % self._world].data_ptr() for i in range(self._world)]
        for first in range(0, COPIES, TOGETHER):
            filled = int32(first, elements, number, largest, TOGETHER)
            launch(stream, simple, self._fill, rank.partials.data_ptr(), done, *filled)
            for i in range(TOGETHER):
                operands = rank.partials[i].data_ptr(), rank.outputs[i].data_ptr()
                launch(stream, how, kernel, *operands, *peers, *int32(number, first + i))
            checked = int32(first, elements, self._world, largest, TOGETHER)
            launch(stream, simple, self._check, rank.outputs.data_ptr(), done, *checked, found)
        launch(stream, single, self._advance, done, *int32(COPIES))


def main() -> None:
    world, launches = int(sys.argv[1]), int(sys.argv[2])
    stress = Stress(world)
    for i, job in enumerate(json.load(sys.stdin)):
        workload = operator("reduction").workload({"width": job["width"]}, job["tokens"], world=world)
        config = Config.of(job["variant"], job["params"])
        # The last such line says what hangs.
        print(f"{workload} {config}", file=sys.stderr, flush=True)
        print(json.dumps(stress.run(workload, config, launches, seed=i)), flush=True)


if __name__ == "__main__":
    main()
