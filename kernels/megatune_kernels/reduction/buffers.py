"""One rank's operands of a reduction on the current GPU, with references that it computes alone. Imports torch.

Every rank draws everyone's partials from the same seed, so it knows the sums without asking. Most sets hold integers
so small that no sum of them is rounded, in whatever order: their results are exact, and one lost, doubled or late
partial shows. Partials hold -0.0 too, alone and in pairs, where a kernel that waits for that very word would hang.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
import torch

from megatune_kernels.operator import Workload

SETS = 5
"""Sets of partials, so that a launch that reads what an earlier one sent is found: more than there are parities."""
REAL_SETS = 1
"""Of them, those with random normals."""
COPIES = 60
"""Launches after which set and parity are what they were: a multiple of the sets and of 2, 3 and 4 parities."""
EXACT = 240
"""Integers up to 256 are BF16; the sum of all ranks stays below."""
HALF_ULP = 2.0**-8
"""The most that rounding to BF16 changes, as a share of the value."""
NEGATIVE_ZERO_SHARE = 0.05
MIXED = 0x1E3779B97F4A7C15
"""Odd, with bits in every place."""
IN_PLACE = ("nccl", "torch_two_shot")
"""Baselines that overwrite what they reduce."""


class ReductionBuffers:
    """Partials [5, tokens, width] and outputs [60, tokens, width]: launch number n reduces set n % 5 into output n, so
    that every launch's result is looked at.

    The bound of a sum of reals allows a rounding to BF16 after each addition, as libraries do; kernels that round once
    keep to it as well, and integers leave no room at all.

    Baselines that reduce in place get memory of their own, one for each copy so that each is reduced once, which
    ``poison`` fills with the partials.
    """

    copies = COPIES
    sets = SETS

    def __init__(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int, device: str = "cuda") -> None:
        """:param heaps: by rank, the address in this process of the memory that holds its workspace."""
        self._world, self._rank = workload.world, rank
        self._heaps = tuple(heaps[(rank + i) % workload.world] for i in range(workload.world))
        self._shape = (workload.tokens, workload["width"])
        self._random = torch.Generator(device=device).manual_seed(seed)
        self._partials = torch.empty(SETS, *self._shape, dtype=torch.bfloat16, device=device)
        self._outputs = torch.empty(COPIES, *self._shape, dtype=torch.bfloat16, device=device)
        self._sums = torch.empty(SETS, *self._shape, dtype=torch.float32, device=device)
        self._bounds = torch.empty_like(self._sums)
        self._calls: dict[str, Callable[[int], object]] = {}
        self._memories: dict[str, torch.Tensor] = {}
        self.refresh()

    def pointers(self, copy: int) -> tuple[int, ...]:
        """Partial, output, this rank's heap, then the peers' in the order of (rank + 1) % world and on."""
        return self._partials[copy % SETS].data_ptr(), self._outputs[copy % COPIES].data_ptr(), *self._heaps

    def scalars(self, copy: int) -> tuple[int, ...]:
        return self._rank, copy

    def refresh(self) -> None:
        device = self._partials.device
        largest = EXACT // self._world
        for at in range(SETS):
            exact = torch.zeros(self._shape, dtype=torch.float64, device=device)
            magnitudes = torch.zeros_like(exact)
            for rank in range(self._world):
                partial = self._draw(largest if at >= REAL_SETS else 0)
                exact += partial.double()
                magnitudes += partial.double().abs()
                if rank == self._rank:
                    self._partials[at].copy_(partial)
            self._sums[at] = exact.float()
            # Reals: every addition rounds a value of at most the sum of magnitudes.
            self._bounds[at] = (HALF_ULP * self._world * magnitudes).float() if at < REAL_SETS else 0.0
        self._refill()

    def _refill(self) -> None:
        for memory in self._memories.values():
            memory.view(-1, *self._partials.shape).copy_(self._partials)

    def _draw(self, largest: int) -> torch.Tensor:
        """One rank's partial of one set: integers up to ``largest``, or normals for 0; some zeros are negative."""
        device = self._partials.device
        if largest:
            drawn = torch.randint(
                -largest, largest + 1, self._shape, generator=self._random, device=device, dtype=torch.int32
            ).to(torch.bfloat16)
        else:
            drawn = torch.empty(self._shape, dtype=torch.bfloat16, device=device).normal_(generator=self._random)
        # In pairs: a word of two is what the sentinel looks like. Then alone.
        chance = torch.rand(self._shape, generator=self._random, device=device)
        pairs = chance.view(-1, 2)[:, :1].expand(-1, 2).reshape(self._shape) < NEGATIVE_ZERO_SHARE
        drawn[pairs | (chance > 1 - NEGATIVE_ZERO_SHARE)] = -0.0
        return drawn

    def poison(self) -> None:
        self._outputs.fill_(math.nan)
        self._refill()

    def check(self) -> str:
        if not self._outputs.isnan().all():
            return self._compared(self._outputs)
        # Nobody wrote an output: a baseline that reduces in place did its work, or nothing was done at all.
        for name in IN_PLACE:
            memory = self._memories.get(name)
            if memory is not None and not torch.equal(memory[:SETS], self._partials):
                return self._compared(memory)
        return self._compared(self._outputs)

    def _compared(self, results: torch.Tensor) -> str:
        """Compare results [copies, tokens, width] with the sums of their sets; empty when all are within the bound."""
        found = results.view(-1, *self._partials.shape)
        # NaN fails the comparison, so what was never written is found.
        bad = ~((found.float() - self._sums).abs() <= self._bounds)
        wrong = int(bad.sum().item())
        if not wrong:
            return ""
        at = int(bad.flatten().byte().argmax().item())
        copy, token, column = (int(i) for i in np.unravel_index(at, results.shape))
        return (
            f"rank {self._rank}: {wrong} of {results.numel()} outputs are wrong; first: copy {copy}, token {token}, "
            f"column {column}: got {results[copy, token, column].item():g}, expected "
            f"{self._sums[copy % SETS, token, column].item():g}"
        )

    def fingerprint(self) -> int:
        """Position counts, so two results that are swapped differ."""
        # Four results a word: there are many.
        words = self._outputs.flatten().view(torch.int64)
        places = torch.arange(words.numel(), device=words.device)
        # Wraps around at 64 bits, on every rank alike; odd factors lose no bit.
        return int(((words ^ MIXED) * (2 * places + MIXED)).sum().item())

    def all_reduce(self, name: str, copy: int) -> None:
        """Enqueue a baseline on the current stream; the first call makes what it needs, with all ranks together."""
        if name not in self._calls:
            self._calls[name] = self._prepared(name)
        self._calls[name](copy % COPIES)

    def _prepared(self, name: str) -> Callable[[int], object]:
        from torch import distributed
        from torch.distributed import _symmetric_memory as symmetric

        group = distributed.group.WORLD.group_name
        shape = (COPIES if name in IN_PLACE else SETS, *self._shape)
        if name == "nccl":
            memory = torch.empty(shape, dtype=torch.bfloat16, device=self._partials.device)
        else:
            memory = symmetric.empty(shape, dtype=torch.bfloat16, device=self._partials.device)
            symmetric.rendezvous(memory, group)
        self._memories[name] = memory
        self._refill()
        if name == "nccl":
            return lambda copy: distributed.all_reduce(memory[copy])
        operators, outputs = torch.ops.symm_mem, self._outputs
        if name == "torch_two_shot":
            return lambda copy: operators.two_shot_all_reduce_(memory[copy], "sum", group)
        return lambda copy: operators.one_shot_all_reduce_out(memory[copy % SETS], "sum", group, outputs[copy])
