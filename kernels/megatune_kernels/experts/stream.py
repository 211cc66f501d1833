"""Both kernels of the experts: weights stream through the warps' own asynchronous copies. Imports the DSL.

A block takes units, rows of one expert with the tokens of one group, in turns with the others. The stages of its units
are one sequence, and copies run ahead in it across units, so that the memory never waits for an epilogue. Warps meet
only to add up their shares of K, once a unit, into one of two buffers in turns.

In ``down`` a warp leaves the rows of each route in the workspace, counts itself, and who is the last of a token's
routes adds them up, in the order of the token's experts: the result does not depend on who that is.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute

from megatune_kernels.experts.device import count_arrivals
from megatune_kernels.experts.device import evict_first
from megatune_kernels.experts.device import load_shared2
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.device import wait_for_count
from megatune_kernels.experts.epilogue import activate
from megatune_kernels.experts.epilogue import add_and_activate
from megatune_kernels.experts.epilogue import add_routes
from megatune_kernels.experts.epilogue import leave_partials
from megatune_kernels.experts.epilogue import leave_results
from megatune_kernels.experts.geometry import COUNT_BITS
from megatune_kernels.experts.geometry import EVICT_FIRST
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import GROUP_BYTES
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import ROW_BYTES
from megatune_kernels.experts.geometry import SCALES_A_TILE
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import piece_place
from megatune_kernels.experts.geometry import row_place
from megatune_kernels.experts.sorting import take_routes
from megatune_kernels.experts.stages import copy_block_scales
from megatune_kernels.experts.stages import copy_scales
from megatune_kernels.experts.stages import copy_tokens
from megatune_kernels.experts.stages import copy_weights
from megatune_kernels.experts.stages import multiply
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP


def _columns(unit: Int32, table: Int32, kernel: cutlass.Constexpr) -> tuple[Int32, Int32]:
    """Where in shared memory the routes of a unit's group are, and how many."""
    _, place = load_shared2(table + unit // kernel.row_blocks * GROUP_BYTES)
    order = table + Int32(kernel.most_groups * GROUP_BYTES)
    return order + (Int32(place) >> COUNT_BITS) * FP32_BYTES, Int32(place) & Int32((1 << COUNT_BITS) - 1)


@cute.jit
def _fetch_weights(
    step: Int32,
    block: Int32,
    blocks: Int32,
    k_warp: Int32,
    row_warp: Int32,
    table: Int32,
    weight_slot: Int32,
    weight_source: Int64,
    scale_slot: Int32,
    scale_source: Int64,
    policy: Int64,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy weights and scales of one of this warp's stages.

    :param step: its number among those of all units that the block takes.
    :param weight_source: this lane's first piece of row 0 of expert 0.
    :param scale_source: of all scales.
    """
    unit = block + step // kernel.steps * blocks
    at = (step % kernel.steps * kernel.k_warps + k_warp) * kernel.k_unroll
    expert, _ = load_shared2(table + unit // kernel.row_blocks * GROUP_BYTES)
    row = (unit % kernel.row_blocks * kernel.row_warps + row_warp) * kernel.outputs
    first = Int64(Int32(expert)) * kernel.rows_an_expert + Int64(row)
    source = weight_source + first * kernel.row_bytes + Int64(at * ROW_BYTES[kernel.weights])
    copy_weights(weight_slot, source, policy, kernel)
    if cutlass.const_expr(kernel.weights == MXFP4):
        own_scales = scale_source + first * kernel.scale_row_bytes + Int64(at * SCALES_A_TILE)
        copy_scales(scale_slot, own_scales, lane, kernel)
    if cutlass.const_expr(kernel.weights == FP8):
        copy_block_scales(scale_slot, scale_source, Int32(expert), row, at, lane, kernel)


@cute.jit
def _fetch_tokens(
    step: Int32,
    block: Int32,
    blocks: Int32,
    k_warp: Int32,
    table: Int32,
    slot: Int32,
    source: Int64,
    column: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy the activations of one of this warp's stages; parameters as above, of ``_copy_tokens``."""
    unit = block + step // kernel.steps * blocks
    at = (step % kernel.steps * kernel.k_warps + k_warp) * kernel.k_unroll
    columns, count = _columns(unit, table, kernel)
    copy_tokens(slot, source + Int64(at * (TILE_K * BF16_BYTES)), column, columns, count, kernel)


@cute.jit
def run(
    x: Int64,
    w: Int64,
    scales: Int64,
    shares: Int64,
    out: Int64,
    results: Int64,
    counters: Int64,
    groups: Int32,
    arrivals: Int64,
    meets: cutlass.Constexpr,
    kernel: cutlass.Constexpr,
) -> None:
    """Take this block's units of one of the two matrices. Parameters as in ``_kernel``.

    :param groups: how many there are in the table at the start of shared memory.
    :param arrivals: counts the blocks that are through with ``up``, where that was in the same launch (``meets``).
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    lane = thread % WARP
    warp = cute.arch.make_warp_uniform(thread // WARP)
    row_warp = warp % kernel.row_warps
    k_warp = warp // kernel.row_warps
    up = kernel.role == UP
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=128).toint())
    partials = shared + Int32(kernel.table_bytes)
    all_stages = shared + Int32(kernel.stages_at)
    if cutlass.const_expr(meets):
        # Behind this all threads of the block have stored what they had to, and shared memory is free.
        cute.arch.sync_threads()
        if thread == Int32(0):
            cute.arch.fence_acq_rel_gpu()
            count_arrivals(arrivals)
    units = groups * kernel.row_blocks
    own_units = Int32(0)
    if block < units:
        own_units = (units - block - Int32(1)) // blocks + Int32(1)
    steps = own_units * kernel.steps

    weight_copies = kernel.weight_copies
    token_copies = kernel.token_copies
    weight_row = lane // weight_copies.lanes_a_row
    weight_piece = lane % weight_copies.lanes_a_row
    column = lane // token_copies.lanes_a_row
    token_piece = lane % token_copies.lanes_a_row
    token_slot = piece_place(token_piece, kernel.token_tile_bytes, kernel.columns) + row_place(column, kernel.columns)
    stages = all_stages + warp * (kernel.stages * kernel.stage_bytes)
    weight_slot = stages + kernel.weight_place(weight_row, weight_piece)
    scale_slot = stages + Int32(kernel.weight_stage_bytes)
    token_slot = scale_slot + Int32(kernel.scale_stage_bytes) + token_slot
    weight_source = w + Int64(kernel.source_row(weight_row)) * kernel.row_bytes + Int64(weight_piece * COPY_BYTES)
    token_source = x + Int64(token_piece * COPY_BYTES)
    # Of the two scales of a tile, that of this lane's elements.
    selector = Uint32(0x4440) + Uint32(lane % 4 // 2)
    policy = Int64(0)
    if cutlass.const_expr(kernel.cache == EVICT_FIRST):
        policy = evict_first()
    sums = cute.make_rmem_tensor(kernel.row_tiles * kernel.token_tiles * 4, Float32)
    sums.fill(0.0)

    for s in cutlass.range_constexpr(kernel.stages - 1):
        if Int32(s) < steps:
            slot = Int32(s * kernel.stage_bytes)
            _fetch_weights(
                Int32(s),
                block,
                blocks,
                k_warp,
                row_warp,
                shared,
                weight_slot + slot,
                weight_source,
                scale_slot + slot,
                scales,
                policy,
                lane,
                kernel,
            )
    # Weights are on their way; what they are multiplied with comes from all blocks of ``up``.
    if cutlass.const_expr(meets):
        if thread == Int32(0):
            wait_for_count(arrivals, blocks)
            # Who leaves last leaves it as it was.
            if count_arrivals(arrivals + FP32_BYTES) == blocks - Int32(1):
                store_global(arrivals, Int32(0))
                store_global(arrivals + FP32_BYTES, Int32(0))
        cute.arch.sync_threads()
    if cutlass.const_expr(not up and not meets):
        cute.arch.griddepcontrol_wait()
    for s in cutlass.range_constexpr(kernel.stages - 1):
        if Int32(s) < steps:
            _fetch_tokens(
                Int32(s),
                block,
                blocks,
                k_warp,
                shared,
                token_slot + Int32(s * kernel.stage_bytes),
                token_source,
                column,
                kernel,
            )
        cute.arch.cp_async_commit_group()

    now = Int32(0)
    ahead = Int32((kernel.stages - 1) * kernel.stage_bytes)
    parity = Int32(0)
    for step in cutlass.range(0, steps):
        cute.arch.cp_async_wait_group(kernel.stages - 2)
        cute.arch.sync_warp()
        later = step + Int32(kernel.stages - 1)
        if later < steps:
            _fetch_weights(
                later,
                block,
                blocks,
                k_warp,
                row_warp,
                shared,
                weight_slot + ahead,
                weight_source,
                scale_slot + ahead,
                scales,
                policy,
                lane,
                kernel,
            )
            _fetch_tokens(later, block, blocks, k_warp, shared, token_slot + ahead, token_source, column, kernel)
        cute.arch.cp_async_commit_group()
        multiply(sums, stages + now, lane, selector, kernel)
        ahead = now
        now = now + Int32(kernel.stage_bytes)
        if now == Int32(kernel.stages * kernel.stage_bytes):
            now = Int32(0)
        if step % kernel.steps == Int32(kernel.steps - 1):
            unit = block + step // kernel.steps * blocks
            columns, count = _columns(unit, shared, kernel)
            first_row = unit % kernel.row_blocks * (kernel.row_warps * kernel.outputs)
            if cutlass.const_expr(kernel.k_warps > 1):
                parts = partials + parity
                leave_partials(sums, parts + warp * (kernel.group * kernel.pitch * FP32_BYTES), lane, kernel)
                cute.arch.sync_threads()
                add_and_activate(parts, out, first_row, columns, count, kernel)
                parity = Int32(kernel.partial_bytes) - parity
            elif cutlass.const_expr(up):
                activate(sums, out, first_row + row_warp * kernel.outputs, columns, count, lane, kernel)
            else:
                own_row = first_row + row_warp * kernel.outputs
                leave_results(sums, results, own_row, columns, count, lane, kernel)
                # What all lanes stored is there before any of them counts.
                cute.arch.sync_warp()
                cute.arch.fence_acq_rel_gpu()
                add_routes(results, shares, counters, out, own_row, columns, count, lane, kernel)
            sums.fill(0.0)
    cute.arch.cp_async_wait_group(0)


@cute.jit
def _begin(
    ids: Int64, counters: Int64, faults: Int64, tokens: Int32, clears: cutlass.Constexpr, kernel: cutlass.Constexpr
) -> Int32:
    """Clear the counters, where it is this kernel's turn, and sort the routes.

    :returns: how many groups there are.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=128).toint())
    fault = Int64(0)
    if cutlass.const_expr(clears):
        if block == Int32(0):
            fault = faults
        for i in cutlass.range(block * kernel.threads + thread, tokens * kernel.slices, blocks * kernel.threads):
            store_global(counters + Int64(i) * FP32_BYTES, Int32(0))
    return take_routes(ids, tokens * kernel.top, shared, shared + Int32(kernel.stages_at), fault, kernel)


@cute.kernel
def _kernel(
    x: Int64,
    w: Int64,
    scales: Int64,
    ids: Int64,
    shares: Int64,
    out: Int64,
    results: Int64,
    counters: Int64,
    faults: Int64,
    tokens: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """``up``: x [tokens, k], w13, out = hidden [routes, width]; it also clears the counters. ``down``: x = hidden, w2,
    out [tokens, latent], results [routes, latent] in FP32.

    ids [tokens, top] in INT32, shares [tokens, top] in FP32; scales [experts, rows, k / 32] in bytes, or
    [experts, rows / 128, k / 128] in FP32.
    """
    up = kernel.role == UP
    if cutlass.const_expr(up):
        cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    # In ``down`` the routing is older than the predecessor, which waited for it before it let this kernel start.
    groups = _begin(ids, counters, faults, tokens, up, kernel)
    run(x, w, scales, shares, out, results, counters, groups, Int64(0), False, kernel)


@cute.kernel
def _both(
    x: Int64,
    w13: Int64,
    scales13: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    hidden: Int64,
    y: Int64,
    results: Int64,
    counters: Int64,
    faults: Int64,
    tokens: Int32,
    up: cutlass.Constexpr,
    down: cutlass.Constexpr,
) -> None:
    """The same in one launch, whose blocks wait for one another between the two.

    :param faults: the word of faults, then the counts of who is through with ``up`` and who went on to ``down``.
    """
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    arrivals = faults + FP32_BYTES
    groups = _begin(ids, counters, faults, tokens, True, up)
    run(x, w13, scales13, shares, hidden, results, counters, groups, arrivals, False, up)
    run(hidden, w2, scales2, shares, y, results, counters, groups, arrivals, True, down)


@cute.jit
def launch(
    x: Int64,
    w: Int64,
    scales: Int64,
    ids: Int64,
    shares: Int64,
    out: Int64,
    results: Int64,
    counters: Int64,
    faults: Int64,
    tokens: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _kernel(x, w, scales, ids, shares, out, results, counters, faults, tokens, kernel).launch(
        grid=[1, 1, 1],
        block=[kernel.threads, 1, 1],
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=True,
        min_blocks_per_mp=1,
    )


@cute.jit
def launch_both(
    x: Int64,
    w13: Int64,
    scales13: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    hidden: Int64,
    y: Int64,
    results: Int64,
    counters: Int64,
    faults: Int64,
    tokens: Int32,
    stream: Any,
    up: cutlass.Constexpr,
    down: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _both(x, w13, scales13, w2, scales2, ids, shares, hidden, y, results, counters, faults, tokens, up, down).launch(
        grid=[1, 1, 1],
        block=[up.threads, 1, 1],
        smem=max(up.shared_bytes, down.shared_bytes),
        stream=stream,
        use_pdl=True,
        min_blocks_per_mp=1,
    )
