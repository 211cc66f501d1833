"""Which bytes a prefetch asks for: the arithmetic that kernel, operands and tests share. Imports no DSL."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatune_kernels.errors import MegatuneError

ALIGNMENT = 16
"""Bytes: of every address and size of a bulk prefetch (PTX ISA, ``cp.async.bulk.prefetch.L2``)."""
MIB = 1 << 20
KIB = 1 << 10

Range = tuple[int, int]
"""A device address and a number of bytes."""


def check_ranges(ranges: Sequence[Range]) -> None:
    """Check the ranges of a table before anything is launched that walks it.

    :raises MegatuneError: naming the range that a bulk prefetch cannot take.
    """
    for number, (address, size) in enumerate(ranges, start=1):
        for what, value in (("address", address), ("bytes", size)):
            if value % ALIGNMENT:
                raise MegatuneError(
                    f"range {number}: {what} {value} is not a multiple of {ALIGNMENT}, as a bulk prefetch needs"
                )
        if size <= 0:
            raise MegatuneError(f"range {number}: bytes {size}: a range has at least {ALIGNMENT}")


def chunks(size: Any, chunk: Any) -> Any:
    """How many pieces a range is fetched in; the last may be shorter."""
    return (size + chunk - 1) // chunk


def turns(left: Any, blocks: Any) -> Any:
    """How many of ``left`` pieces, 0 or more, a block has when it takes the first and then every ``blocks``-th."""
    return (left + blocks - 1) // blocks


@dataclass(frozen=True)
class Matrix:
    """A range as the rows that its reader goes through side by side."""

    address: int
    rows: int
    row_bytes: int


def walk(
    matrices: Sequence[Matrix], depth: int, chunk: int, block: int, blocks: int, *, columns: bool = False, head: int = 0
) -> Iterator[Range]:
    """What one block asks for, in its order: its share of the first ``depth`` bytes.

    Pieces are dealt to the blocks in turns over all matrices, so that the whole grid works at what is read first.

    :param columns: a piece of every row comes before the next one of any, as blocks read that each have rows of their
        own; else bytes come as they lie.
    :param head: with ``columns``, bytes of every row of the first matrix that are left out: its reader asks for them
        itself.
    """
    first, left = block, depth
    for matrix in matrices:
        rows, pitch = (matrix.rows, matrix.row_bytes) if columns else (1, matrix.rows * matrix.row_bytes)
        # Of each row equally much, in what can be asked for.
        width = min(pitch - head, left // rows // ALIGNMENT * ALIGNMENT)
        count = rows * chunks(width, chunk)
        mine = turns(max(count, first) - first, blocks)
        for turn in range(mine):
            strip, row = divmod(first + turn * blocks, rows)
            yield matrix.address + row * pitch + head + strip * chunk, min(chunk, width - strip * chunk)
        first += mine * blocks - count
        left = left - rows * width if width == pitch - head else 0
        head = 0
