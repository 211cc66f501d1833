"""Operands of a chain on the current GPU: those of every consumer, and where their weights lie. Imports torch."""

from __future__ import annotations

import torch

from megatune_kernels.buffers import Windows
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.chain import BF16_BYTES
from megatune_kernels.prefetch.chain import Consumer
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.ranges import check_ranges
from megatune_kernels.projection.buffers import ProjectionBuffers


class ChainBuffers:
    """``copies`` sets of every consumer's operands, and of each set a table [consumers, 2] of address and bytes of the
    weights, 64 bits each, in the order in which they are read.

    A consumer's results keep to the bounds that it has alone.
    """

    def __init__(self, workload: Workload, copies: int, seed: int, device: str = "cuda") -> None:
        """:raises MegatuneError: naming a range that a prefetch cannot ask for."""
        self.copies = copies
        self._tokens = workload.tokens
        self._consumers = chain_of(workload).consumers
        self._operands = {
            consumer.name: ProjectionBuffers(consumer.workload(workload.tokens), copies, seed + consumer.number, device)
            for consumer in self._consumers
        }
        ranges = [
            [(self._weights(consumer, copy), consumer.weight_bytes) for consumer in self._consumers]
            for copy in range(copies)
        ]
        for each in ranges:
            check_ranges(each)
        self._tables = torch.tensor(ranges, dtype=torch.int64, device=device)

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
            for start in range(0, self.copies * consumer.weight_bytes - size + 1, size)
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
