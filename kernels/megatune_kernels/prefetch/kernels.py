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
"""Of an entry of the table: an address and a number of bytes, 64 bits each."""


@cute.jit
def _spin(nanoseconds: Int32) -> None:
    """Return when so much time has passed on the GPU's timer; no memory is touched."""
    until = cute.arch.globaltimer() + Int64(nanoseconds)
    while cute.arch.globaltimer() < until:
        pass


def _entry(address: Int64) -> tuple[Int64, Int64]:
    """An entry of the table: the address and the bytes of a range."""
    start, size = inline_ptx(
        "ld.global.v2.b64 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Int64] * 2, read_only_args=[address]
    )
    return start, size


def _ask(address: Int64, size: Uint32) -> None:
    inline_ptx("cp.async.bulk.prefetch.L2.global [{$r0}], {$r1};", read_only_args=[address, size])


@cute.kernel
def _prefetch(table: Int64, ranges: Int32, depth: Int32, chunk: Int32, delay: Int32) -> None:
    """Ask for the first ``depth`` MiB of so many ranges in pieces of ``chunk`` bytes, ``delay`` ns after the start.

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
        for number in cutlass.range(ranges, unroll=1):
            start, size = _entry(table + Int64(number) * ENTRY_BYTES)
            take = cutlass.min(Uint32(size >> 4), left)
            count = chunks(take, piece)
            mine = turns(cutlass.max(count, first) - first, blocks)
            for turn in cutlass.range(Int32(mine), unroll=1):
                at = (first + Uint32(turn) * blocks) * piece
                _ask(start + Int64(at) * ALIGNMENT, cutlass.min(piece, take - at) * ALIGNMENT)
            first = first + mine * blocks - count
            left = left - take


@cute.kernel
def _idle(nanoseconds: Int32) -> None:
    """Take so long and touch no memory. Programmatic dependents may come at once, as behind the real kernels."""
    cute.arch.griddepcontrol_launch_dependents()
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        _spin(nanoseconds)


@cute.jit
def launch_prefetch(table: Int64, ranges: Int32, depth: Int32, chunk: Int32, delay: Int32, stream: Any) -> None:
    """What is compiled; runners launch the cubin themselves, with a grid of their own."""
    _prefetch(table, ranges, depth, chunk, delay).launch(grid=[1, 1, 1], block=[WARP, 1, 1], stream=stream)


@cute.jit
def launch_idle(nanoseconds: Int32, stream: Any) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _idle(nanoseconds).launch(grid=[1, 1, 1], block=[WARP, 1, 1], stream=stream)
