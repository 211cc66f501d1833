"""Operands of a chain on the current GPU: those of every consumer, and where their weights lie. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatune_kernels.buffers import Windows
from megatune_kernels.cold import sets_of
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.chain import BF16_BYTES
from megatune_kernels.prefetch.chain import Consumer
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.ranges import check_ranges
from megatune_kernels.projection.buffers import ProjectionBuffers
from megatune_kernels.reduction.buffers import COPIES
from megatune_kernels.reduction.buffers import ReductionBuffers

DIVISORS = [n for n in range(1, COPIES + 1) if COPIES % n == 0]


class ChainBuffers:
    """``copies`` sets of every consumer's operands, and of each set a table [consumers, 2] of 64-bit words: the address
    of the weights, and bytes of a row in the lower half beside rows in the upper one, in the order in which they are
    read.

    A consumer's results keep to the bounds that it has alone.
    """

    def __init__(self, workload: Workload, copies: int, seed: int, device: str = "cuda") -> None:
        """:raises MegatuneError: naming a range that a prefetch cannot ask for."""
        self.copies = copies
        self.sets = copies
        self._tokens = workload.tokens
        self._consumers = chain_of(workload).consumers
        self._operands = {
            consumer.name: ProjectionBuffers(consumer.workload(workload.tokens), copies, seed + consumer.number, device)
            for consumer in self._consumers
        }
        tables = []
        for copy in range(copies):
            places = [self._weights(consumer, copy) for consumer in self._consumers]
            check_ranges([(at, consumer.row_bytes) for at, consumer in zip(places, self._consumers, strict=True)])
            tables.append([[at, c.row_bytes | c.n << 32] for at, c in zip(places, self._consumers, strict=True)])
        self._tables = torch.tensor(tables, dtype=torch.int64, device=device)

    def pointers(self, copy: int) -> tuple[int, ...]:
        """The table that the prefetch walks."""
        return (self._tables[copy].data_ptr(),)

    def part_pointers(self, part: str, copy: int) -> tuple[int, ...]:
        if part in self._operands:
            return self._operands[part].pointers(copy)
        return self.pointers(copy) if part == "prefetch" else ()

    def windows(self, part: str, most_bytes: int | None = None) -> Windows | None:
        if part not in self._operands:
            return None
        mine = next(consumer for consumer in self._consumers if consumer.name == part)
        rows = mine.n if most_bytes is None else min(mine.n, max(1, most_bytes // (BF16_BYTES * mine.k)))
        size = BF16_BYTES * rows * mine.k
        x, _, y = self._operands[part].pointers(0)
        # Weights of one consumer are contiguous over its copies, and any of them will do for this one.
        places = [
            self._weights(consumer, 0) + start
            for consumer in self._consumers
            for start in range(0, self.sets * consumer.weight_bytes - size + 1, size)
        ]
        workload = Workload.of("projection", {"n": rows, "k": mine.k}, self._tokens)
        return Windows(workload, size, tuple((x, place, y) for place in places))

    def refresh(self) -> None:
        for operands in self._operands.values():
            operands.refresh()

    def poison(self) -> None:
        for operands in self._operands.values():
            operands.poison()

    def check(self) -> str:
        for name, operands in self._operands.items():
            wrong = operands.check()
            if wrong:
                return f"{name}: {wrong}"
        return ""

    def _weights(self, consumer: Consumer, copy: int) -> int:
        return self._operands[consumer.name].pointers(copy)[1]


class GroupChainBuffers(ChainBuffers):
    """A rank's of a chain whose idle phase is a reduction: beside those of the consumers, partials and sums.

    Launch number n has partials and sums as in a reduction alone, and set n of the consumers' operands, of which there
    are so many that both begin again together.
    """

    def __init__(self, workload: Workload, rank: int, heaps: Sequence[int], seed: int, device: str = "cuda") -> None:
        """:param heaps: by rank, the address in this process of the memory that holds its workspace."""
        chain = chain_of(workload)
        wanted = sets_of(chain.weight_bytes, device)
        # Weights of consumers are a rank's own.
        super().__init__(workload, next((n for n in DIVISORS if n >= wanted), COPIES), seed + 1000 * rank, device)
        self.copies = COPIES
        reduction = Workload.of("reduction", {"width": chain.width}, workload.tokens, world=workload.world)
        self._reduction = ReductionBuffers(reduction, rank, heaps, seed, device)

    def pointers(self, copy: int) -> tuple[int, ...]:
        return super().pointers(copy % self.sets)

    def part_pointers(self, part: str, copy: int) -> tuple[int, ...]:
        return self._reduction.pointers(copy) if part == "reduction" else super().part_pointers(part, copy % self.sets)

    def scalars(self, copy: int) -> tuple[int, ...]:
        return ()

    def part_scalars(self, part: str, copy: int) -> tuple[int, ...]:
        return self._reduction.scalars(copy) if part == "reduction" else ()

    def refresh(self) -> None:
        super().refresh()
        self._reduction.refresh()

    def poison(self) -> None:
        super().poison()
        self._reduction.poison()

    def check(self) -> str:
        return super().check() or self._reduction.check()

    def fingerprint(self) -> int:
        return self._reduction.fingerprint()
