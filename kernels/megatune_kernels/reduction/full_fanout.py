"""Variant ``full_fanout``: every rank sends its partial to every peer and sums what it received. Imports the DSL.

One hop, and bytes times the peers: the shortest way while latency counts more than bandwidth. Before a rank sends
nothing happens but the load of its partial.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
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
def _load_own(own: cute.Tensor, addresses: list[Int64], kernel: cutlass.Constexpr) -> None:
    for i in cutlass.range_constexpr(kernel.thread_vectors):
        loaded = load(addresses[i], kernel.words)
        for w in cutlass.range_constexpr(kernel.words):
            own[i * kernel.words + w] = loaded[w]
    for w in cutlass.range_constexpr(kernel.thread_vectors * kernel.words):
        own[w] = without_negative_zero(own[w])


@cute.jit
def _send_tile(
    own: cute.Tensor,
    partial: Int64,
    peers: list[Int64],
    rank: Int32,
    thread: Int32,
    tile: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    count = kernel.vectors(tile, choose)
    if kernel.has_work(thread, count):
        vectors, real = thread_vectors(thread, count, kernel)
        addresses = [partial + Int64(kernel.element_byte(tile, vector)) for vector in vectors]
        slots = slots_at_peers(peers, rank, tile, vectors, 0, kernel)
        if cutlass.const_expr(kernel.rounds == 1):
            begin(kernel)
        _load_own(own, addresses, kernel)
        for i in cutlass.range_constexpr(kernel.thread_vectors):
            words = [own[i * kernel.words + w] for w in range(kernel.words)]
            if real[i]:
                for p in cutlass.range_constexpr(kernel.peers):
                    send(slots[i][p], words)
    if cutlass.const_expr(kernel.signal != SENTINEL):
        raise_flags(peers, rank, thread, tile, 0, kernel)


@cute.jit
def _sum_tile(
    own: cute.Tensor,
    partial: Int64,
    output: Int64,
    mailboxes: Int64,
    rank: Int32,
    thread: Int32,
    tile: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    if cutlass.const_expr(kernel.signal != SENTINEL):
        wait_for_flags(mailboxes, thread, tile, 0, kernel)
    count = kernel.vectors(tile, choose)
    if kernel.has_work(thread, count):
        vectors, _ = thread_vectors(thread, count, kernel)
        if cutlass.const_expr(kernel.rounds > 1):
            _load_own(own, [partial + Int64(kernel.element_byte(tile, vector)) for vector in vectors], kernel)
        slots = [mailboxes + Int64(kernel.box_byte(tile, vector)) for vector in vectors]
        boxes = [box * kernel.box_bytes for box in range(kernel.peers)]
        received = receive(slots, boxes, kernel)
        for i in cutlass.range_constexpr(kernel.thread_vectors):
            mine = [own[i * kernel.words + w] for w in range(kernel.words)]
            store(output + Int64(kernel.element_byte(tile, vectors[i])), ranked_sum(mine, received[i], rank))
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
    own = cute.make_rmem_tensor(kernel.thread_vectors * kernel.words, Uint32)
    if cutlass.const_expr(kernel.rounds == 1):
        _send_tile(own, partial, theirs, rank, thread, block, kernel)
        _sum_tile(own, partial, output, mailboxes, rank, thread, block, kernel)
    else:
        begin(kernel)
        for step in cutlass.range(kernel.rounds + kernel.ahead, unroll=1):
            tile = block + step * kernel.grid
            if tile < kernel.tiles:
                _send_tile(own, partial, theirs, rank, thread, tile, kernel)
            arrived = tile - kernel.ahead * kernel.grid
            if arrived >= 0 and arrived < kernel.tiles:
                _sum_tile(own, partial, output, mailboxes, rank, thread, arrived, kernel)


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
