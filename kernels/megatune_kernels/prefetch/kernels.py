"""The prefetch kernel, and the stand-in for a phase in which the memory bus idles. Imports the DSL.

A block of the prefetch is one warp, of which one thread asks: the unit that takes bulk requests needs no more, and what
a block holds of an SM stays small. Nothing is waited for: the kernel ends when everything has been asked for.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute
from cutlass.cute.arch import inline_ptx

from megatune_kernels.prefetch.ranges import ALIGNMENT
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.prefetch.ranges import chunks
from megatune_kernels.prefetch.ranges import turns
from megatune_kernels.projection.geometry import WARP

ENTRY_BYTES = 16
"""Of an entry of the table: an address of 64 bits, bytes of a row and rows of 32 bits each."""


@cute.jit
def _spin(nanoseconds: Int32) -> None:
    """Return when so much time has passed on the GPU's timer; no memory is touched."""
    until = cute.arch.globaltimer() + Int64(nanoseconds)
    while cute.arch.globaltimer() < until:
        pass


def _entry(address: Int64) -> tuple[Int64, Uint32, Uint32]:
    """An entry of the table: the address of a matrix, bytes of a row, and rows."""
    start = inline_ptx("ld.global.b64 {$w0}, [{$r0}];", write_only_types=[Int64], read_only_args=[address])
    row_bytes, rows = inline_ptx(
        "ld.global.v2.b32 {{$w0}, {$w1}}, [{$r0}];",
        write_only_types=[Uint32] * 2,
        read_only_args=[address + ENTRY_BYTES // 2],
    )
    return start, row_bytes, rows


def _ask(address: Int64, size: Uint32) -> None:
    inline_ptx("cp.async.bulk.prefetch.L2.global [{$r0}], {$r1};", read_only_args=[address, size])


@cute.kernel
def _prefetch(
    table: Int64, begin: Int32, end: Int32, depth: Int32, chunk: Int32, columns: Int32, head: Int32, delay: Int32
) -> None:
    """Ask for the first ``depth`` MiB of the matrices ``begin`` to ``end`` of the table in pieces of ``chunk`` bytes,
    ``delay`` ns after the start; with ``columns`` a piece of every row first, without the first ``head`` bytes of those
    of the first matrix.

    As ``ranges.walk``, in units of 16 bytes, so that every count is of 32 bits.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    grid, _, _ = cute.arch.grid_dim()
    if thread == 0:
        _spin(delay)
        blocks = Uint32(grid)
        piece = Uint32(chunk) // ALIGNMENT
        first = Uint32(block)
        left = Uint32(depth) * (MIB // ALIGNMENT)
        skipped = Uint32(head) // ALIGNMENT
        for number in cutlass.range(begin, end, unroll=1):
            start, row_bytes, rows = _entry(table + Int64(number) * ENTRY_BYTES)
            pitch = row_bytes // ALIGNMENT
            if columns == 0:
                pitch = pitch * rows
                rows = Uint32(1)
            width = cutlass.min(pitch - skipped, left // rows)
            count = rows * chunks(width, piece)
            mine = turns(cutlass.max(count, first) - first, blocks)
            for turn in cutlass.range(Int32(mine), unroll=1):
                place = first + Uint32(turn) * blocks
                strip = place // rows
                at = (place - strip * rows) * pitch + skipped + strip * piece
                _ask(start + Int64(at) * ALIGNMENT, cutlass.min(piece, width - strip * piece) * ALIGNMENT)
            first = first + mine * blocks - count
            left = left - rows * width if width == pitch - skipped else Uint32(0)
            skipped = Uint32(0)


@cute.kernel
def _idle(nanoseconds: Int32) -> None:
    """Take so long and touch no memory. Programmatic dependents may come at once, as behind the real kernels."""
    cute.arch.griddepcontrol_launch_dependents()
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        _spin(nanoseconds)


@cute.jit
def launch_prefetch(
    table: Int64,
    begin: Int32,
    end: Int32,
    depth: Int32,
    chunk: Int32,
    columns: Int32,
    head: Int32,
    delay: Int32,
    stream: Any,
) -> None:
    """What is compiled; runners launch the cubin themselves, with a grid of their own."""
    _prefetch(table, begin, end, depth, chunk, columns, head, delay).launch(
        grid=[1, 1, 1], block=[WARP, 1, 1], stream=stream
    )


@cute.jit
def launch_idle(nanoseconds: Int32, stream: Any) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _idle(nanoseconds).launch(grid=[1, 1, 1], block=[WARP, 1, 1], stream=stream)
