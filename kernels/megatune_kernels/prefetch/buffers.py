"""Operands of a chain on the current GPU: those of every consumer, and where their weights lie. Imports torch."""

from __future__ import annotations

import torch

from megatune_kernels.buffers import Slice
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.chain import BF16_BYTES
from megatune_kernels.prefetch.chain import Consumer
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.ranges import check_ranges
from megatune_kernels.projection.buffers import ProjectionBuffers

ROWS = 16
"""Slices are whole tiles of rows, where there are so many."""


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

    def slices(self, most_bytes: int) -> list[Slice]:
        found = []
        for copy in range(self.copies):
            for consumer in self._consumers:
                pieces = -(-consumer.weight_bytes // most_bytes)
                rows = consumer.n // pieces
                rows = rows // ROWS * ROWS or rows
                x, w, y = self._operands[consumer.name].pointers(copy)
                workload = Workload.of("projection", {"n": rows, "k": consumer.k}, self._tokens)
                for piece in range(consumer.n // rows):
                    start = w + piece * rows * consumer.k * BF16_BYTES
                    found.append(Slice(consumer.name, workload, (x, start, y)))
        return found

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
