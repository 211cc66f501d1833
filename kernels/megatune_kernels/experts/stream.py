"""Both kernels of the experts: weights stream through the warps' own asynchronous copies. Imports the DSL.

The stages of the units that a warp takes part in are one sequence, and copies run ahead in it across units, so that
there is something on its way during an epilogue.

In ``up`` the warps of a block divide K and meet once a unit, to add up their shares in one of two buffers in turns; or
each has all of K of its own units, and they never meet. In ``down`` a block has the same rows of all experts: each warp
adds up what its groups give to each token, in the order of experts, and the warps are added up in their order at the
end: the result is the same each time.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.experts.device import count_arrivals
from megatune_kernels.experts.device import evict_first
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.device import wait_for_count
from megatune_kernels.experts.epilogue import activate
from megatune_kernels.experts.epilogue import add_and_activate
from megatune_kernels.experts.epilogue import add_to_tokens
from megatune_kernels.experts.epilogue import add_warps
from megatune_kernels.experts.epilogue import clear
from megatune_kernels.experts.epilogue import leave_partials
from megatune_kernels.experts.geometry import ARRIVALS_WORD
from megatune_kernels.experts.geometry import EVICT_FIRST
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import SCALE_TILE_BYTES
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import piece_place
from megatune_kernels.experts.geometry import row_place
from megatune_kernels.experts.sorting import take_routes
from megatune_kernels.experts.stages import copy_block_scales
from megatune_kernels.experts.stages import copy_scales
from megatune_kernels.experts.stages import copy_tokens
from megatune_kernels.experts.stages import copy_weights
from megatune_kernels.experts.stages import find_tokens
from megatune_kernels.experts.stages import multiply
from megatune_kernels.experts.units import ask_for_unit
from megatune_kernels.experts.units import dealt
from megatune_kernels.experts.units import end_stealing
from megatune_kernels.experts.units import group_at
from megatune_kernels.experts.units import place
from megatune_kernels.experts.units import pull_next
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP

WHOLE = 100
"""Percent of what the L1 and shared memory have together."""


def _sources(
    expert: Int32, row_block: Int32, weight_source: Int64, scale_source: Int64, kernel: cutlass.Constexpr
) -> tuple[Int64, Int64]:
    """Where this lane's first pieces of a unit's weights and scales are, of those of expert 0."""
    first = Int64(expert * kernel.row_tiles_an_expert + row_block * kernel.row_tiles)
    return weight_source + first * kernel.row_tile_bytes, scale_source + first * kernel.scale_row_tile_bytes


@cute.jit
def _fetch_weights(
    weights: Int64,
    scales: Int64,
    expert: Int32,
    row_block: Int32,
    stage: Int32,
    k_warp: Int32,
    weight_slot: Int32,
    scale_slot: Int32,
    policy: Int64,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy weights and scales of one of this warp's stages.

    :param weights: of ``_sources``.
    :param stage: its number in the unit.
    """
    at = (stage * kernel.k_warps + k_warp) * kernel.k_unroll
    copy_weights(weight_slot, weights + Int64(at * kernel.tile_bytes), policy, kernel)
    if cutlass.const_expr(kernel.weights == MXFP4):
        copy_scales(scale_slot, scales + Int64(at * SCALE_TILE_BYTES), lane, kernel)
    if cutlass.const_expr(kernel.weights == FP8):
        copy_block_scales(scale_slot, scales, expert, row_block * kernel.outputs, at, lane, kernel)


@cute.jit
def run(
    x: Int64,
    w: Int64,
    scales: Int64,
    out: Int64,
    next_w: Int64,
    next_scales: Int64,
    groups: Int32,
    tokens: Int32,
    faults: Int64,
    meets: cutlass.Constexpr,
    kernel: cutlass.Constexpr,
) -> None:
    """Take this block's units of one of the two matrices. Parameters as in ``_up`` and ``_down``.

    :param next_w: what ``up`` pulls into the L2, w2 and its scales.
    :param groups: how many there are in the table at the start of shared memory.
    :param meets: whether ``up`` was in the same launch, so that the blocks that are through with it are counted.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    lane = thread % WARP
    warp = cute.arch.make_warp_uniform(thread // WARP)
    k_warp = warp % kernel.k_warps
    up = kernel.role == UP
    table = Int32(cute.arch.get_dyn_smem(Float32, alignment=128).toint())
    partials = table + Int32(kernel.table_bytes)
    all_stages = table + Int32(kernel.stages_at)
    arrivals = faults + ARRIVALS_WORD * FP32_BYTES
    if cutlass.const_expr(meets):
        # Behind this all threads of the block have stored what they had to, and shared memory is free.
        cute.arch.sync_threads()
        if thread == Int32(0):
            cute.arch.fence_acq_rel_gpu()
            count_arrivals(arrivals)
    first, stride, units = dealt(block, blocks, warp, groups, kernel)
    # Stages that are known to be this warp's, and not multiplied yet.
    left = Int32(0)
    asked = Int32(0)
    if first < units:
        if cutlass.const_expr(kernel.steals):
            left = Int32(kernel.steps)
            asked = ask_for_unit(faults, lane)
        else:
            left = ((units - first - Int32(1)) // stride + Int32(1)) * kernel.steps

    token_copies = kernel.token_copies
    column = lane // token_copies.lanes_a_row
    token_piece = lane % token_copies.lanes_a_row
    token_slot = piece_place(token_piece, kernel.token_tile_bytes, kernel.columns) + row_place(column, kernel.columns)
    stages = all_stages + warp * (kernel.stages * kernel.stage_bytes)
    weight_slot = stages + lane * COPY_BYTES
    scale_slot = stages + Int32(kernel.weight_stage_bytes)
    token_slot = scale_slot + Int32(kernel.scale_stage_bytes) + token_slot
    weight_source = w + Int64(lane * COPY_BYTES)
    token_source = x + Int64(token_piece * COPY_BYTES)
    policy = Int64(0)
    if cutlass.const_expr(kernel.cache == EVICT_FIRST):
        policy = evict_first()
    sums = cute.make_rmem_tensor(kernel.row_tiles * kernel.token_tiles * 4, Float32)
    sums.fill(0.0)
    sources = cute.make_rmem_tensor(token_copies.copies_a_line, Int32)

    for s in cutlass.range_constexpr(kernel.stages - 1):
        if Int32(s) < left:
            slot = Int32(s * kernel.stage_bytes)
            group, row_block = place(first + stride * (s // kernel.steps), block, kernel)
            expert, _, _ = group_at(table, group, kernel)
            own_weights, own_scales = _sources(expert, row_block, weight_source, scales, kernel)
            _fetch_weights(
                own_weights,
                own_scales,
                expert,
                row_block,
                Int32(s % kernel.steps),
                k_warp,
                weight_slot + slot,
                scale_slot + slot,
                policy,
                lane,
                kernel,
            )
    if cutlass.const_expr(up and kernel.depth_mib > 0):
        request = block * kernel.warps + warp
        pull_next(next_w, next_scales, table, groups, request, blocks * kernel.warps, lane, kernel)
    if cutlass.const_expr(not up):
        own = partials + warp * (kernel.padded_tokens * kernel.pitch * FP32_BYTES)
        clear(own, lane, tokens, kernel)
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
        if Int32(s) < left:
            group, _ = place(first + stride * (s // kernel.steps), block, kernel)
            _, order, count = group_at(table, group, kernel)
            find_tokens(sources, column, order, count, kernel)
            at = (Int32(s % kernel.steps) * kernel.k_warps + k_warp) * kernel.k_unroll
            slot = token_slot + Int32(s * kernel.stage_bytes)
            copy_tokens(slot, token_source + Int64(at * (TILE_K * BF16_BYTES)), sources, kernel)
        cute.arch.cp_async_commit_group()

    # Of what is fetched next: looked up a step before it is needed, so that no warp waits for shared memory.
    ahead = Int32((kernel.stages - 1) * kernel.stage_bytes)
    later = first + stride * ((kernel.stages - 1) // kernel.steps)
    later_stage = Int32((kernel.stages - 1) % kernel.steps)
    expert = Int32(0)
    row_block = Int32(0)
    own_weights = weight_source
    own_scales = scales
    if later < units:
        group, row_block = place(later, block, kernel)
        expert, order, count = group_at(table, group, kernel)
        own_weights, own_scales = _sources(expert, row_block, weight_source, scales, kernel)
        find_tokens(sources, column, order, count, kernel)
    unit = first
    stage = Int32(0)
    now = Int32(0)
    parity = Int32(0)
    turned = thread
    while left > Int32(0):
        cute.arch.cp_async_wait_group(kernel.stages - 2)
        cute.arch.sync_warp()
        if left > Int32(kernel.stages - 1):
            _fetch_weights(
                own_weights,
                own_scales,
                expert,
                row_block,
                later_stage,
                k_warp,
                weight_slot + ahead,
                scale_slot + ahead,
                policy,
                lane,
                kernel,
            )
            at = (later_stage * kernel.k_warps + k_warp) * kernel.k_unroll
            copy_tokens(token_slot + ahead, token_source + Int64(at * (TILE_K * BF16_BYTES)), sources, kernel)
        cute.arch.cp_async_commit_group()
        later_stage = later_stage + Int32(1)
        later_order = Int32(0)
        later_count = Int32(0)
        if later_stage == Int32(kernel.steps):
            later_stage = Int32(0)
            if cutlass.const_expr(kernel.steals):
                later = stride + cute.arch.shuffle_sync(asked, 0)
                if later < units:
                    left = left + Int32(kernel.steps)
                    asked = ask_for_unit(faults, lane)
            else:
                later = later + stride
            if later < units:
                group, row_block = place(later, block, kernel)
                expert, later_order, later_count = group_at(table, group, kernel)
                own_weights, own_scales = _sources(expert, row_block, weight_source, scales, kernel)
        multiply(sums, stages + now, lane, kernel)
        if later_count > Int32(0):
            find_tokens(sources, column, later_order, later_count, kernel)
        ahead = now
        now = now + Int32(kernel.stage_bytes)
        if now == Int32(kernel.stages * kernel.stage_bytes):
            now = Int32(0)
        stage = stage + Int32(1)
        if stage == Int32(kernel.steps):
            group, own_rows = place(unit, block, kernel)
            _, order, count = group_at(table, group, kernel)
            first_output = own_rows * kernel.outputs
            if cutlass.const_expr(not up):
                add_to_tokens(sums, own, order, count, lane, kernel)
            elif cutlass.const_expr(kernel.k_warps > 1):
                parts = partials + parity
                leave_partials(sums, parts + warp * (kernel.group * kernel.pitch * FP32_BYTES), lane, kernel)
                cute.arch.sync_threads()
                add_and_activate(parts, out, first_output, order, count, turned, kernel)
                parity = Int32(kernel.unit_bytes) - parity
                # Most units are work for one warp: another one each time.
                turned = turned + Int32(WARP)
                if turned >= Int32(kernel.threads):
                    turned = turned - Int32(kernel.threads)
            else:
                activate(sums, out, first_output, order, count, lane, kernel)
            sums.fill(0.0)
            stage = Int32(0)
            # Who steals is never more than one unit ahead.
            unit = later if kernel.steals else unit + stride
        left = left - Int32(1)
    cute.arch.cp_async_wait_group(0)
    if cutlass.const_expr(kernel.steals):
        end_stealing(faults, thread, blocks)
    if cutlass.const_expr(not up):
        cute.arch.sync_threads()
        if block < Int32(kernel.row_blocks):
            add_warps(partials, out, block * kernel.rows, tokens, kernel)


@cute.jit
def _begin(
    ids: Int64, shares: Int64, faults: Int64, tokens: Int32, tells: cutlass.Constexpr, kernel: cutlass.Constexpr
) -> Int32:
    """Sort the routes.

    :param tells: whether it is this kernel's turn to tell of faults.
    :returns: how many groups there are.
    """
    block, _, _ = cute.arch.block_idx()
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=128).toint())
    fault = Int64(0)
    if cutlass.const_expr(tells):
        fault = cutlass.select_(block == Int32(0), faults, fault)
    return take_routes(ids, shares, tokens * kernel.top, shared, shared + Int32(kernel.stages_at), fault, kernel)


@cute.kernel
def _up(
    x: Int64,
    w13: Int64,
    scales13: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    hidden: Int64,
    faults: Int64,
    tokens: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """x [tokens, k], hidden [routes, width] in BF16; ids [tokens, top] in INT32, shares [tokens, top] in FP32; scales
    [experts, rows, k / 32] in bytes, or [experts, rows / 128, k / 128] in FP32.

    :param w2: not read, but pulled into the L2.
    """
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    groups = _begin(ids, shares, faults, tokens, True, kernel)
    run(x, w13, scales13, hidden, w2, scales2, groups, tokens, faults, False, kernel)


@cute.kernel
def _down(
    hidden: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    y: Int64,
    faults: Int64,
    tokens: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """y [tokens, latent] in BF16; the others as in ``_up``."""
    cute.arch.griddepcontrol_launch_dependents()
    # The routing is older than the predecessor, which waited for it before it let this kernel start.
    groups = _begin(ids, shares, faults, tokens, False, kernel)
    run(hidden, w2, scales2, y, Int64(0), Int64(0), groups, tokens, faults, False, kernel)


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
    faults: Int64,
    tokens: Int32,
    up: cutlass.Constexpr,
    down: cutlass.Constexpr,
) -> None:
    """The same in one launch, whose blocks wait for one another between the two.

    :param faults: the word of faults, then counts (``geometry.FAULT_WORDS``).
    """
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    groups = _begin(ids, shares, faults, tokens, True, up)
    run(x, w13, scales13, hidden, w2, scales2, groups, tokens, faults, False, up)
    run(hidden, w2, scales2, y, Int64(0), Int64(0), groups, tokens, faults, True, down)


@cute.jit
def launch_up(
    x: Int64,
    w13: Int64,
    scales13: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    hidden: Int64,
    faults: Int64,
    tokens: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _up(x, w13, scales13, w2, scales2, ids, shares, hidden, faults, tokens, kernel).launch(
        grid=[1, 1, 1],
        block=[kernel.threads, 1, 1],
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=True,
        min_blocks_per_mp=kernel.resident,
        # Else the DSL asks a GPU how much there is, which need not be here.
        preferred_smem_carveout=WHOLE,
    )


@cute.jit
def launch_down(
    hidden: Int64,
    w2: Int64,
    scales2: Int64,
    ids: Int64,
    shares: Int64,
    y: Int64,
    faults: Int64,
    tokens: Int32,
    stream: Any,
    kernel: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _down(hidden, w2, scales2, ids, shares, y, faults, tokens, kernel).launch(
        grid=[1, 1, 1],
        block=[kernel.threads, 1, 1],
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=True,
        min_blocks_per_mp=kernel.resident,
        # Else the DSL asks a GPU how much there is, which need not be here.
        preferred_smem_carveout=WHOLE,
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
    faults: Int64,
    tokens: Int32,
    stream: Any,
    up: cutlass.Constexpr,
    down: cutlass.Constexpr,
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _both(x, w13, scales13, w2, scales2, ids, shares, hidden, y, faults, tokens, up, down).launch(
        grid=[1, 1, 1],
        block=[up.threads, 1, 1],
        smem=max(up.shared_bytes, down.shared_bytes),
        stream=stream,
        use_pdl=True,
        min_blocks_per_mp=up.resident,
        preferred_smem_carveout=WHOLE,
    )
