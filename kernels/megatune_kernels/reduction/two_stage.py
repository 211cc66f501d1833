"""Variant ``two_stage``: each rank owns a range of columns, sums it for all, and sends the result. Imports the DSL.

Two hops, and twice the bytes whatever the world: the shorter way once bandwidth counts. The block that has tile ``j``
of its own rank's range has tile ``j`` of every other range too, on every rank, so a block waits for one block of each
peer and for no other.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.reduction.device import load
from megatune_kernels.reduction.device import ranked_sum
from megatune_kernels.reduction.device import send
from megatune_kernels.reduction.device import store
from megatune_kernels.reduction.device import without_negative_zero
from megatune_kernels.reduction.exchange import arm
from megatune_kernels.reduction.exchange import begin
from megatune_kernels.reduction.exchange import choose
from megatune_kernels.reduction.exchange import parity_byte
from megatune_kernels.reduction.exchange import raise_flags
from megatune_kernels.reduction.exchange import receive
from megatune_kernels.reduction.exchange import slots_at_peers
from megatune_kernels.reduction.exchange import thread_vectors
from megatune_kernels.reduction.exchange import wait_for_flags
from megatune_kernels.reduction.geometry import SENTINEL


@cute.jit
def _send_partials(
    partial: Int64, peers: list[Int64], rank: Int32, thread: Int32, tile: Int32, kernel: cutlass.Constexpr
) -> None:
    count = kernel.vectors(tile, choose)
    if kernel.has_work(thread, count):
        vectors, real = thread_vectors(thread, count, kernel)
        places = [partial + Int64(kernel.element_byte(tile, vector)) for vector in vectors]
        shares = [Int64(kernel.peer_rank(rank, p, choose)) * kernel.share_bytes for p in range(kernel.peers)]
        slots = slots_at_peers(peers, rank, tile, vectors, 0, kernel)
        if cutlass.const_expr(kernel.rounds == 1):
            begin(kernel)
        loaded = [[load(place + share, kernel.words) for share in shares] for place in places]
        for i in cutlass.range_constexpr(kernel.thread_vectors):
            if real[i]:
                for p in cutlass.range_constexpr(kernel.peers):
                    send(slots[i][p], [without_negative_zero(word) for word in loaded[i][p]])
    if cutlass.const_expr(kernel.signal != SENTINEL):
        raise_flags(peers, rank, thread, tile, 0, kernel)


@cute.jit
def _sum_own(
    partial: Int64,
    output: Int64,
    mailboxes: Int64,
    peers: list[Int64],
    rank: Int32,
    thread: Int32,
    tile: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    if cutlass.const_expr(kernel.signal != SENTINEL):
        wait_for_flags(mailboxes, thread, tile, 0, kernel)
    count = kernel.vectors(tile, choose)
    if kernel.has_work(thread, count):
        vectors, real = thread_vectors(thread, count, kernel)
        columns = Int64(rank) * kernel.share_bytes
        places = [Int64(kernel.element_byte(tile, vector)) + columns for vector in vectors]
        own = [load(partial + place, kernel.words) for place in places]
        theirs = slots_at_peers(peers, rank, tile, vectors, kernel.peers, kernel)
        slots = [mailboxes + Int64(kernel.box_byte(tile, vector)) for vector in vectors]
        boxes = [box * kernel.box_bytes for box in range(kernel.peers)]
        received = receive(slots, boxes, kernel)
        for i in cutlass.range_constexpr(kernel.thread_vectors):
            mine = [without_negative_zero(word) for word in own[i]]
            result = ranked_sum(mine, received[i], rank)
            if real[i]:
                for p in cutlass.range_constexpr(kernel.peers):
                    send(theirs[i][p], result)
            store(output + places[i], result)
        arm(slots, boxes, kernel)
    if cutlass.const_expr(kernel.signal != SENTINEL):
        raise_flags(peers, rank, thread, tile, kernel.peers, kernel)


@cute.jit
def _collect_results(
    output: Int64, mailboxes: Int64, rank: Int32, thread: Int32, tile: Int32, kernel: cutlass.Constexpr
) -> None:
    if cutlass.const_expr(kernel.signal != SENTINEL):
        wait_for_flags(mailboxes, thread, tile, kernel.peers, kernel)
    count = kernel.vectors(tile, choose)
    if kernel.has_work(thread, count):
        vectors, _ = thread_vectors(thread, count, kernel)
        slots = [mailboxes + Int64(kernel.box_byte(tile, vector)) for vector in vectors]
        boxes = [box * kernel.box_bytes for box in range(kernel.peers, kernel.boxes)]
        received = receive(slots, boxes, kernel)
        for b in cutlass.range_constexpr(kernel.peers):
            columns = Int64(kernel.box_rank(rank, b, choose)) * kernel.share_bytes
            for i in cutlass.range_constexpr(kernel.thread_vectors):
                store(output + columns + Int64(kernel.element_byte(tile, vectors[i])), received[i][b])
        arm(slots, boxes, kernel)


@cute.kernel
def _kernel(
    partial: Int64,
    output: Int64,
    heap: Int64,
    peers: list[Int64],
    rank: Int32,
    number: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """partial and output [tokens, width] in BF16; the workspace is at the start of the heap, this rank's and peers'."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    parity = parity_byte(number, kernel)
    mailboxes = heap + parity
    theirs = [peer + parity for peer in peers]
    if cutlass.const_expr(kernel.rounds == 1):
        _send_partials(partial, theirs, rank, thread, block, kernel)
        _sum_own(partial, output, mailboxes, theirs, rank, thread, block, kernel)
        _collect_results(output, mailboxes, rank, thread, block, kernel)
    else:
        begin(kernel)
        # A block waits in a step for what its peers did in earlier steps alone, so no two wait for one another.
        for step in cutlass.range(kernel.rounds + 2 * kernel.ahead, unroll=1):
            tile = block + step * kernel.grid
            if tile < kernel.tiles:
                _send_partials(partial, theirs, rank, thread, tile, kernel)
            arrived = tile - kernel.ahead * kernel.grid
            if arrived >= 0 and arrived < kernel.tiles:
                _sum_own(partial, output, mailboxes, theirs, rank, thread, arrived, kernel)
            summed = tile - 2 * kernel.ahead * kernel.grid
            if summed >= 0 and summed < kernel.tiles:
                _collect_results(output, mailboxes, rank, thread, summed, kernel)


@cute.jit
def launch(
    partial: Int64,
    output: Int64,
    heap: Int64,
    peers: list[Int64],
    rank: Int32,
    number: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _kernel(partial, output, heap, peers, rank, number, kernel).launch(
        grid=[kernel.grid, 1, 1], block=[kernel.threads, 1, 1], stream=stream, use_pdl=kernel.pdl
    )
