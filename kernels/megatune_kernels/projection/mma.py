"""Variant ``mma``: tensor cores, with the weights as the row operand and tokens padded to 8, 16, 32 or 64. Imports
the DSL.

A warp owns ``rows_a_warp`` rows of w and walks its share of K in steps of 32 x ``k_unroll`` elements; the warps of a
block divide its rows first and K next, the blocks of a cluster divide K again (split-K). Warps that walk the same share
of K are a group: they keep step and share the activations. Weights and activations come through ``stages``
asynchronous copies in shared memory.

A dot product does not care in which order K is visited as long as both operands agree. Within 32 elements of K, lane c
of a quad takes elements 8c to 8c+7 of each of its rows, which are 16 contiguous bytes, as its fragments of two
m16n8k16 instructions. So shared memory holds fragments: every access is 16 bytes wide and free of bank conflicts, with
no swizzle. Copies are dealt to lanes by another rule, whole 128-byte lines of as few rows as possible, since the L1
looks up one line at a time.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.projection.device import copy_async
from megatune_kernels.projection.device import load_shared4
from megatune_kernels.projection.device import mma_16x8x16
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.epilogue import sum_and_store
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import STREAM_BYTES
from megatune_kernels.projection.geometry import TILE_K
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.projection.geometry import TILE_TOKENS
from megatune_kernels.projection.geometry import WARP


@cute.jit
def _copy_weights(
    slot: Int32, source: Int64, row_bytes: Int64, row: Int32, limit: Int32, kernel: cutlass.Constexpr
) -> None:
    """Copy a stage of this warp's rows of w.

    :param slot: where this lane's first piece goes.
    :param source: where this lane's first piece comes from.
    :param row: this lane's first row; rows from ``limit`` on are not there, and what they leave is never stored.
    """
    for line in cutlass.range_constexpr(kernel.lines_a_stage):
        for j in cutlass.range_constexpr(kernel.rows_a_warp // kernel.rows_a_copy):
            ahead = j * kernel.rows_a_copy
            if row + ahead < limit:
                place = kernel.piece(line * kernel.tiles_a_line, 0, ahead)
                copy_async(slot + Int32(place), source + row_bytes * ahead + line * kernel.line_bytes, through_l1=False)


@cute.jit
def _copy_activations(
    slot: Int32,
    source: Int64,
    row_bytes: Int64,
    row: Int32,
    tokens: Int32,
    row_warp: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy this warp's part of a stage of x, which its group shares. Parameters as above, of x."""
    copies = kernel.padded_tokens // kernel.rows_a_copy
    for line in cutlass.range_constexpr(kernel.lines_a_stage):
        for j in cutlass.range_constexpr(copies):
            ahead = j * kernel.rows_a_copy
            if row + ahead < tokens and row_warp == (line * copies + j) % kernel.row_warps:
                place = kernel.piece(line * kernel.tiles_a_line, kernel.weight_streams, ahead)
                copy_async(slot + Int32(place), source + row_bytes * ahead + line * kernel.line_bytes, through_l1=True)


@cute.jit
def multiply(sums: cute.Tensor, slot: Int32, own: Int32, kernel: cutlass.Constexpr) -> None:
    """sums[row tile][token tile][4] += one step; ``own`` is where this warp's weights lie in a tile."""
    for u in cutlass.range_constexpr(kernel.k_unroll):
        tile = slot + Int32(u * kernel.tile_bytes)
        weights = []
        for i in cutlass.range_constexpr(2 * kernel.row_tiles):
            weights.append(load_shared4(tile + own + Int32(i * STREAM_BYTES)))
        for j in cutlass.range_constexpr(kernel.token_tiles):
            x = load_shared4(tile + Int32((kernel.weight_streams + j) * STREAM_BYTES))
            for i in cutlass.range_constexpr(kernel.row_tiles):
                place = (i * kernel.token_tiles + j) * 4
                held = [sums[place], sums[place + 1], sums[place + 2], sums[place + 3]]
                low, high = weights[2 * i], weights[2 * i + 1]
                held = mma_16x8x16(held, [low[0], high[0], low[1], high[1]], [x[0], x[1]])
                held = mma_16x8x16(held, [low[2], high[2], low[3], high[3]], [x[2], x[3]])
                for e in cutlass.range_constexpr(4):
                    sums[place + e] = held[e]


@cute.kernel
def _kernel(
    x: cute.Pointer,
    w: cute.Pointer,
    y: cute.Pointer,
    n: Int32,
    k: Int32,
    tokens: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """x [tokens, K], w [n, K], y [tokens, n], all BF16 and row-major. Grid (ceil(n / rows), split_k)."""
    thread, _, _ = cute.arch.thread_idx()
    tile, rank, _ = cute.arch.block_idx()
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_launch_dependents()
    lane = thread % WARP
    warp = cute.arch.make_warp_uniform(thread // WARP)
    row_warp = warp % kernel.row_warps
    k_warp = warp // kernel.row_warps
    first_row = tile * kernel.rows
    warp_row = row_warp * kernel.rows_a_warp
    row_bytes = Int64(k) * BF16_BYTES
    step_bytes = kernel.k_unroll * TILE_K * BF16_BYTES
    steps = k // (kernel.k_unroll * TILE_K)
    first_step = rank * kernel.k_warps + k_warp
    stride = kernel.split_k * kernel.k_warps

    # Which row and which 16 bytes of a line this lane copies, and where the lane that multiplies them looks.
    row = lane // kernel.lanes_a_row
    piece = lane % kernel.lanes_a_row
    weights = w.toint() + Int64(first_row + warp_row + row) * row_bytes + Int64(piece * COPY_BYTES)
    activations = x.toint() + Int64(row) * row_bytes + Int64(piece * COPY_BYTES)
    weight_rows = n - first_row - warp_row
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=16).toint())
    stages = shared + k_warp * (kernel.stages * kernel.stage_bytes)
    own = row_warp * (2 * kernel.row_tiles * STREAM_BYTES)
    landing = stages + (piece // 4) * kernel.tile_bytes + (row * 4 + piece % 4) * COPY_BYTES
    fragments = stages + lane * COPY_BYTES
    sums = cute.make_rmem_tensor(kernel.row_tiles * kernel.token_tiles * 4, Float32)
    for i in cutlass.range_constexpr(kernel.row_tiles * kernel.token_tiles * 4):
        sums[i] = Float32(0.0)

    for s in cutlass.range_constexpr(kernel.stages - 1):
        if first_step + s * stride < steps:
            at = Int64(first_step + s * stride) * step_bytes
            slot = landing + Int32(s * kernel.stage_bytes)
            _copy_weights(slot + own, weights + at, row_bytes, row, weight_rows, kernel)
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_wait()
    for s in cutlass.range_constexpr(kernel.stages - 1):
        if first_step + s * stride < steps:
            at = Int64(first_step + s * stride) * step_bytes
            slot = landing + Int32(s * kernel.stage_bytes)
            _copy_activations(slot, activations + at, row_bytes, row, tokens, row_warp, kernel)
        cute.arch.cp_async_commit_group()

    now = Int32(0)
    ahead = Int32((kernel.stages - 1) * kernel.stage_bytes)
    for step in cutlass.range(first_step, steps, stride):
        # Behind this point all copies of the group have landed, and all of it is done with the stage before.
        cute.arch.cp_async_wait_group(kernel.stages - 2)
        if cutlass.const_expr(kernel.row_warps > 1):
            cute.arch.barrier(barrier_id=1 + k_warp, number_of_threads=kernel.row_warps * WARP)
        else:
            cute.arch.sync_warp()
        later = step + (kernel.stages - 1) * stride
        if later < steps:
            at = Int64(later) * step_bytes
            _copy_weights(landing + ahead + own, weights + at, row_bytes, row, weight_rows, kernel)
            _copy_activations(landing + ahead, activations + at, row_bytes, row, tokens, row_warp, kernel)
        cute.arch.cp_async_commit_group()
        multiply(sums, fragments + now, own, kernel)
        ahead = now
        now = now + kernel.stage_bytes
        if now == kernel.stages * kernel.stage_bytes:
            now = Int32(0)

    # The stages are free once every warp is through; the partials take their place.
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    group = lane // 4
    quad_lane = lane % 4
    part = shared + k_warp * (kernel.padded_tokens * kernel.pitch * FP32_BYTES)
    for i in cutlass.range_constexpr(kernel.row_tiles):
        for j in cutlass.range_constexpr(kernel.token_tiles):
            for e in cutlass.range_constexpr(4):
                row = warp_row + i * TILE_ROWS + group + (e // 2) * (TILE_ROWS // 2)
                token = j * TILE_TOKENS + 2 * quad_lane + e % 2
                place = part + (token * kernel.pitch + row) * FP32_BYTES
                store_shared(place, sums[(i * kernel.token_tiles + j) * 4 + e])
    cute.arch.sync_threads()
    sum_and_store(
        shared,
        y.toint(),
        tokens,
        n,
        first_row,
        thread,
        rank,
        parts=kernel.k_warps,
        rows=kernel.rows,
        pitch=kernel.pitch,
        padded_tokens=kernel.padded_tokens,
        split_k=kernel.split_k,
        threads=kernel.warps * WARP,
    )


@cute.jit
def launch(
    x: cute.Pointer,
    w: cute.Pointer,
    y: cute.Pointer,
    n: Int32,
    k: Int32,
    tokens: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _kernel(x, w, y, n, k, tokens, kernel).launch(
        grid=[(n + kernel.rows - 1) // kernel.rows, kernel.split_k, 1],
        block=[kernel.warps * WARP, 1, 1],
        cluster=[1, kernel.split_k, 1] if kernel.split_k > 1 else None,
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=kernel.pdl,
        min_blocks_per_mp=1,
    )
