"""An operator of a group of ranks whose variants end in every status; each but ``good`` goes wrong at rank 1.

y = the sum over ranks of x, n integers each: every rank writes its own into each peer's mailboxes and waits for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from faulty_operator import Faulty

from megatune_kernels.artifact import artifact_key
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture

BLOCK = 256
PARITIES = 3
SETS = 2
ARMED = 0xFFFFFFFF
"""More than any value."""
MOST_VALUE = 1 << 20
TOO_MUCH = 1 << 40
"""Elements that no GPU holds."""
BODIES = {
    "good": ("", "y[i] = sum;"),
    "wrong": ("", "y[i] = sum + (rank == 1 && i == 7);"),
    "stale": ("", "if (rank != 1 || i != 7) y[i] = sum;"),
    "crash": ("if (rank == 1) *(volatile unsigned*)(16) = i;", "y[i] = sum;"),
    "hang": ("while (rank == 1 && mailboxes[0] != 1u) {}", "y[i] = sum;"),
    "refused": ("", "y[i] = sum;"),
    "crowded": ("", "y[i] = sum;"),
    "wide": ("", "y[i] = sum;"),
}
"""Before a rank sends, and when it has received."""


class FaultySum(Faulty):
    name = "faulty_sum"
    variants = tuple(BODIES)
    baselines = ("nccl",)

    def workloads(self, model: Any, parallel: Any, tokens: Sequence[int]) -> list[Workload]:
        return [self.workload({"n": 1 << 12}, count, world=parallel.tensor) for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "int32", world: int = 2) -> Workload:
        if sorted(dims) != ["n"]:
            raise MegatuneError("a faulty sum has the dim n")
        return Workload.of(self.name, dims, tokens, dtype=dtype, world=world)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        unit = Parameter("unit", (1, 2), 1, "changes nothing")
        return Space(tuple(VariantSpace(variant, (unit,)) for variant in self.variants))

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"variant": config.variant, "world": workload.world, "n": workload["n"]}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        from cuda.core import Program
        from cuda.core import ProgramOptions

        world, n = workload.world, workload["n"]
        before, after = BODIES[config.variant]
        peers = "".join(f", volatile unsigned* peer{i}" for i in range(1, world))
        sends = "".join(f"peer{i}[slot(number, rank, i)] = value;" for i in range(1, world))
        source = f"""
        __device__ long long slot(int number, int rank, int i) {{
            return (long long)(number % {PARITIES} * {world} + rank) * {n} + i;
        }}
        extern "C" __global__ void entry(
            const unsigned* x, volatile unsigned* y, volatile unsigned* mailboxes{peers}, int rank, int number
        ) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i >= {n}) return;
            unsigned value = x[i], sum = value;
            {before}
            {sends}
            for (int step = 1; step < {world}; step++) {{
                volatile unsigned* mailbox = mailboxes + slot(number, (rank + step) % {world}, i);
                unsigned received;
                while ((received = *mailbox) == {ARMED}u) {{}}
                *mailbox = {ARMED}u;
                sum += received;
            }}
            {after}
        }}"""
        code = Program(source, "c++", ProgramOptions(arch=arch.name)).compile("cubin").code
        return Artifact(artifact_key(self, workload, config, arch), arch.name, "entry", bytes(code), 0, 0)

    def launch(self, workload: Workload, config: Config) -> Launch:
        blocks = 1 << 20 if config.variant == "crowded" else -(-_held(workload) // BLOCK)
        block = 8 * BLOCK if config.variant == "refused" else BLOCK
        return Launch((blocks, 1, 1), (block, 1, 1), 0, resident=True)

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        times = 1 << 20 if config.variant == "wide" else 1
        return Workspace(times * 4 * PARITIES * workload.world * _held(workload), 16, ARMED)

    def cost(self, workload: Workload, config: Config) -> Cost:
        return Cost(8 * workload["n"], 4 * (workload.world - 1) * workload["n"], workload["n"])

    def rotating_bytes(self, workload: Workload) -> int:
        return 0

    def group_inputs(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int) -> SumBuffers:
        return SumBuffers(workload["n"] if rank == 1 else _held(workload), rank, heaps, seed)

    def baseline(self, name: str, workload: Workload, inputs: Any, copy: int) -> None:
        inputs.all_reduce(copy)


def _held(workload: Workload) -> int:
    """Elements; few of those that are too many, so that rank 1 alone fails for them."""
    return 1 if workload["n"] >= TOO_MUCH else workload["n"]


class SumBuffers:
    copies = SETS * PARITIES
    sets = SETS

    def __init__(self, n: int, rank: int, heaps: Sequence[int], seed: int, device: str = "cuda") -> None:
        import torch

        self._rank = rank
        self._heaps = [heaps[(rank + step) % len(heaps)] for step in range(len(heaps))]
        self._random = torch.Generator(device=device).manual_seed(seed)
        self._all = torch.empty(len(heaps), SETS, n, dtype=torch.int32, device=device)
        self._x = torch.empty(SETS, n, dtype=torch.int32, device=device)
        self._y = torch.empty_like(self._x)
        self.refresh()

    def pointers(self, copy: int) -> tuple[int, ...]:
        return self._x[copy % SETS].data_ptr(), self._y[copy % SETS].data_ptr(), *self._heaps

    def scalars(self, copy: int) -> tuple[int, ...]:
        return self._rank, copy

    def refresh(self) -> None:
        self._all.random_(0, MOST_VALUE, generator=self._random)
        self._x.copy_(self._all[self._rank])

    def poison(self) -> None:
        self._y.fill_(-1)

    def check(self) -> str:
        wrong = int((self._y != self._all.sum(0)).sum().item())
        return f"{wrong} outputs differ" if wrong else ""

    def fingerprint(self) -> int:
        return int(self._y.sum().item())

    def all_reduce(self, copy: int) -> None:
        import torch

        self._y[copy % SETS].copy_(self._x[copy % SETS])
        torch.distributed.all_reduce(self._y[copy % SETS])
