"""Both variants: logits and latent of one packed matrix, and the choice of experts, in one launch. Imports the DSL.

The main loop is that of a projection on tensor cores (``megatune_kernels.projection.mma``) whose warps all divide K, so
that no warp waits for another before the sums. Whoever has a logit makes a score of it, and scores are data and signal
at once: a block stores four of a token with one access into the mailbox of every rank that needs them, and whoever
finishes that token polls until none is missing. Nobody else waits, no counter is kept, and one rank's scores arrive as
those of all do. How a token is finished, ``choosing`` says.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute
from cutlass.cute.arch import inline_ptx

from megatune_kernels.projection.device import copy_async
from megatune_kernels.projection.device import load_shared4
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.projection.geometry import TILE_TOKENS
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.projection.mma import multiply
from megatune_kernels.reduction.device import packed
from megatune_kernels.reduction.device import send
from megatune_kernels.reduction.device import store
from megatune_kernels.router.choosing import either
from megatune_kernels.router.choosing import finish
from megatune_kernels.router.geometry import QUAD

LOG2_E = 1.4426950408889634


@cute.jit
def _copy(
    slot: Int32,
    source: Int64,
    first: Int32,
    limit: Int32,
    row: Int32,
    rank: Int32,
    stream: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy a stage of rows of the packed matrix (stream 0) or of x, which this warp alone reads.

    :param slot: where this lane's first piece goes.
    :param source: where this lane's first piece of row 0 comes from.
    :param row: this lane's first row of those of the tile, which begin at ``first``; from ``limit`` on are none.
    """
    tiles = kernel.tiles
    for line in cutlass.range_constexpr(tiles.lines_a_stage):
        for j in cutlass.range_constexpr(rows // tiles.rows_a_copy):
            ahead = j * tiles.rows_a_copy
            at = first + row + ahead
            if at < limit:
                there = at
                if cutlass.const_expr(stream == 0):
                    there = kernel.source_row(at, rank, either)
                place = tiles.piece(line * tiles.tiles_a_line, stream, ahead)
                address = source + Int64(there) * (kernel.k * BF16_BYTES) + line * tiles.line_bytes
                copy_async(slot + Int32(place), address, through_l1=False)


@cute.jit
def _emit(
    values: list[Float32],
    token: Int32,
    row: Int32,
    latent: Int64,
    mailboxes: list[Int64],
    rank: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Four neighbouring rows of a token: scores into mailboxes, or BF16 into the latent [tokens, latent]."""
    if row < kernel.own_experts:
        words = []
        for logit in values:
            score = cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(logit * Float32(-LOG2_E), fastmath=True))
            # Never the word that mailboxes are armed with, which has the sign of a negative number.
            words.append(score.bitcast(Uint32))
        expert = kernel.source_row(row, rank, either)
        for mailbox in mailboxes[: kernel.world if kernel.exchanges else 1]:
            send(mailbox + Int64(token * kernel.experts + expert) * FP32_BYTES, words)
    elif row < kernel.computed_rows:
        pair = [packed(values[0], values[1]), packed(values[2], values[3])]
        store(latent + Int64(token * kernel.latent + row - kernel.own_experts) * BF16_BYTES, pair)


def _store_quad(shared: Int32, values: list[Float32]) -> None:
    inline_ptx("st.shared.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[shared, *values])


def _load_cluster_quad(shared: Int32, rank: Int32) -> list[Float32]:
    """Four neighbours from the same place in the shared memory of block ``rank`` of the cluster."""
    remote = inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[shared, rank]
    )
    return list(
        inline_ptx(
            "ld.shared::cluster.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Float32] * QUAD,
            read_only_args=[remote],
        )
    )


@cute.jit
def _sum_and_emit(
    shared: Int32,
    tokens: Int32,
    first_row: Int32,
    thread: Int32,
    peer: Int32,
    latent: Int64,
    mailboxes: list[Int64],
    rank: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Sum the warps' partials [warps, padded tokens, pitch], then the cluster's, in that order always."""
    tiles = kernel.tiles
    threads = kernel.warps * WARP
    part_bytes = kernel.padded_tokens * tiles.pitch * FP32_BYTES
    total = shared + Int32(kernel.warps * part_bytes)
    quads = kernel.rows // QUAD
    count = tokens * Int32(quads)
    for i in cutlass.range(thread, count, threads):
        token = i // quads
        row = i % quads * QUAD
        place = shared + (token * tiles.pitch + row) * FP32_BYTES
        values = [word.bitcast(Float32) for word in load_shared4(place)]
        for part in cutlass.range_constexpr(1, kernel.warps):
            more = load_shared4(place + Int32(part * part_bytes))
            values = [value + word.bitcast(Float32) for value, word in zip(values, more, strict=True)]
        if cutlass.const_expr(kernel.split_k == 1):
            _emit(values, token, first_row + row, latent, mailboxes, rank, kernel)
        else:
            _store_quad(total + (token * tiles.pitch + row) * FP32_BYTES, values)
    if cutlass.const_expr(kernel.split_k > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for i in cutlass.range(peer * threads + thread, count, threads * kernel.split_k):
            token = i // quads
            row = i % quads * QUAD
            place = total + (token * tiles.pitch + row) * FP32_BYTES
            values = [Float32(0.0) for _ in range(QUAD)]
            for source in cutlass.range_constexpr(kernel.split_k):
                theirs = _load_cluster_quad(place, Int32(source))
                values = [value + more for value, more in zip(values, theirs, strict=True)]
            _emit(values, token, first_row + row, latent, mailboxes, rank, kernel)
        # No block may reuse or leave its shared memory while a peer still reads it.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()


@cute.kernel
def _kernel(
    x: Int64,
    w: Int64,
    bias: Int64,
    latent: Int64,
    ids: Int64,
    weights: Int64,
    heaps: list[Int64],
    tokens: Int32,
    rank: Int32,
    number: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """x [tokens, k] and w [experts + latent, k] in BF16, bias [experts] in FP32. Grid (row blocks, split_k).

    :param heaps: this rank's workspace, then the peers'.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, peer, _ = cute.arch.block_idx()
    tiles = kernel.tiles
    lane = thread % WARP
    warp = cute.arch.make_warp_uniform(thread // WARP)
    first_row = block * kernel.rows
    step_bytes = tiles.stage_k * BF16_BYTES
    steps = kernel.k // tiles.stage_k
    first_step = peer * kernel.warps + warp
    stride = kernel.split_k * kernel.warps

    row = lane // tiles.lanes_a_row
    piece = lane % tiles.lanes_a_row
    weight_source = w + Int64(piece * COPY_BYTES)
    token_source = x + Int64(piece * COPY_BYTES)
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=16).toint())
    stages = shared + warp * (kernel.stages * tiles.stage_bytes)
    landing = stages + (piece // 4) * tiles.tile_bytes + (row * 4 + piece % 4) * COPY_BYTES
    fragments = stages + lane * COPY_BYTES
    limit = Int32(kernel.computed_rows)
    sums = cute.make_rmem_tensor(tiles.row_tiles * tiles.token_tiles * 4, Float32)
    sums.fill(0.0)

    for s in cutlass.range_constexpr(kernel.stages - 1):
        if first_step + s * stride < steps:
            at = Int64(first_step + s * stride) * step_bytes
            slot = landing + Int32(s * tiles.stage_bytes)
            _copy(slot, weight_source + at, first_row, limit, row, rank, 0, kernel.rows, kernel)
    # Behind the wait the predecessor is through, so that activations are there and nobody polls what is sent below.
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
    streams = tiles.weight_streams
    for s in cutlass.range_constexpr(kernel.stages - 1):
        if first_step + s * stride < steps:
            at = Int64(first_step + s * stride) * step_bytes
            slot = landing + Int32(s * tiles.stage_bytes)
            _copy(slot, token_source + at, Int32(0), tokens, row, rank, streams, kernel.padded_tokens, kernel)
        cute.arch.cp_async_commit_group()

    now = Int32(0)
    ahead = Int32((kernel.stages - 1) * tiles.stage_bytes)
    for step in cutlass.range(first_step, steps, stride):
        cute.arch.cp_async_wait_group(kernel.stages - 2)
        cute.arch.sync_warp()
        later = step + (kernel.stages - 1) * stride
        if later < steps:
            at = Int64(later) * step_bytes
            _copy(landing + ahead, weight_source + at, first_row, limit, row, rank, 0, kernel.rows, kernel)
            _copy(
                landing + ahead, token_source + at, Int32(0), tokens, row, rank, streams, kernel.padded_tokens, kernel
            )
        cute.arch.cp_async_commit_group()
        multiply(sums, fragments + now, Int32(0), tiles)
        ahead = now
        now = now + tiles.stage_bytes
        if now == kernel.stages * tiles.stage_bytes:
            now = Int32(0)

    # The stages are free once every warp is through; the partials take their place.
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    group = lane // 4
    part = shared + warp * (kernel.padded_tokens * tiles.pitch * FP32_BYTES)
    for i in cutlass.range_constexpr(tiles.row_tiles):
        for j in cutlass.range_constexpr(tiles.token_tiles):
            for e in cutlass.range_constexpr(4):
                place = i * TILE_ROWS + group + (e // 2) * (TILE_ROWS // 2)
                token = j * TILE_TOKENS + 2 * (lane % 4) + e % 2
                value = sums[(i * tiles.token_tiles + j) * 4 + e]
                store_shared(part + (token * tiles.pitch + place) * FP32_BYTES, value)
    cute.arch.sync_threads()
    parity = Int64(Uint32(number) % Uint32(kernel.parities)) * kernel.parity_bytes
    mailboxes = [heap + parity for heap in heaps]
    _sum_and_emit(shared, tokens, first_row, thread, peer, latent, mailboxes, rank, kernel)

    # The last blocks finish: when one of them is on the GPU, all that it waits for have been before it.
    from_end = (kernel.row_blocks - 1 - block) * kernel.split_k + peer
    if from_end < kernel.finishing_blocks:
        own = shared + warp * Int32(kernel.candidate_bytes)
        for token in cutlass.range(from_end * kernel.warps + warp, tokens, kernel.finishing_blocks * kernel.warps):
            finish(token, mailboxes[0], bias, ids, weights, lane, own, kernel)


@cute.jit
def launch(
    x: Int64,
    w: Int64,
    bias: Int64,
    latent: Int64,
    ids: Int64,
    weights: Int64,
    heaps: list[Int64],
    tokens: Int32,
    rank: Int32,
    number: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _kernel(x, w, bias, latent, ids, weights, heaps, tokens, rank, number, kernel).launch(
        grid=[kernel.row_blocks, kernel.split_k, 1],
        block=[kernel.warps * WARP, 1, 1],
        cluster=[1, kernel.split_k, 1] if kernel.split_k > 1 else None,
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=kernel.pdl,
        min_blocks_per_mp=1,
    )
