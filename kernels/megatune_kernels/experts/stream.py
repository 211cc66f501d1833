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

from megatune_kernels.experts.device import SUM_SCALE
from megatune_kernels.experts.device import activated
from megatune_kernels.experts.device import copy_bytes
from megatune_kernels.experts.device import copy_with_policy
from megatune_kernels.experts.device import count_arrivals
from megatune_kernels.experts.device import evict_first
from megatune_kernels.experts.device import load_half
from megatune_kernels.experts.device import load_result
from megatune_kernels.experts.device import load_shared2
from megatune_kernels.experts.device import load_word
from megatune_kernels.experts.device import paired
from megatune_kernels.experts.device import scale_pair
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.device import weights_of
from megatune_kernels.experts.device import weights_of_bytes
from megatune_kernels.experts.geometry import BF16
from megatune_kernels.experts.geometry import COUNT_BITS
from megatune_kernels.experts.geometry import EVICT_FIRST
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import GROUP_BYTES
from megatune_kernels.experts.geometry import L1
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import ROW_BYTES
from megatune_kernels.experts.geometry import SCALE_BLOCK
from megatune_kernels.experts.geometry import SCALES_A_TILE
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import piece_place
from megatune_kernels.experts.geometry import plane_pitch
from megatune_kernels.experts.geometry import row_place
from megatune_kernels.experts.sorting import take_routes
from megatune_kernels.projection.device import copy_async
from megatune_kernels.projection.device import load_shared
from megatune_kernels.projection.device import load_shared4
from megatune_kernels.projection.device import mma_16x8x16
from megatune_kernels.projection.device import store_bf16
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.projection.geometry import TILE_TOKENS
from megatune_kernels.projection.geometry import WARP


@cute.jit
def _copy_weights(slot: Int32, source: Int64, policy: Int64, kernel: cutlass.Constexpr) -> None:
    """Copy a stage of this warp's rows.

    :param slot: where this lane's first piece goes.
    :param source: where it comes from.
    """
    copies = kernel.weight_copies
    for line in cutlass.range_constexpr(copies.lines):
        piece = line * copies.lanes_a_row
        for j in cutlass.range_constexpr(copies.copies_a_line):
            row = j * copies.rows_a_copy
            place = slot + Int32(kernel.weight_place(row, piece))
            address = source + Int64(kernel.source_row(row) * kernel.row_bytes + piece * COPY_BYTES)
            if cutlass.const_expr(kernel.cache == EVICT_FIRST):
                copy_with_policy(place, address, policy)
            else:
                copy_async(place, address, through_l1=kernel.cache == L1)


@cute.jit
def _copy_scales(slot: Int32, source: Int64, lane: Int32, kernel: cutlass.Constexpr) -> None:
    """Copy the scales of a stage.

    :param slot: where those of the stage begin.
    :param source: where those of the warp's first row do.
    """
    piece = kernel.scale_piece
    if cutlass.const_expr(kernel.whole_rows):
        count = kernel.rows * kernel.scale_bytes // piece
        for i in cutlass.range_constexpr(-(-count // WARP)):
            number = lane + Int32(i * WARP)
            if number < Int32(count):
                copy_bytes(slot + number * piece, source + Int64(number) * piece, piece)
    else:
        own_slot = slot + lane * kernel.scale_bytes
        own = source + Int64(kernel.source_row(lane)) * kernel.scale_row_bytes
        for i in cutlass.range_constexpr(-(-kernel.rows // WARP)):
            if lane < Int32(kernel.rows - i * WARP):
                for n in cutlass.range_constexpr(kernel.scale_bytes // piece):
                    place = own_slot + Int32(i * WARP * kernel.scale_bytes + n * piece)
                    offset = kernel.source_row(i * WARP) * kernel.scale_row_bytes + n * piece
                    copy_bytes(place, own + Int64(offset), piece)


@cute.jit
def _copy_block_scales(
    slot: Int32, source: Int64, expert: Int32, row: Int32, tile: Int32, lane: Int32, kernel: cutlass.Constexpr
) -> None:
    """Copy a stage's scales in FP8, one for each tile and block of rows: of all scales, those of an expert's ``row``
    from a tile on."""
    blocks_of_k = kernel.k // SCALE_BLOCK
    if lane < Int32(kernel.scale_halves * kernel.k_unroll):
        half = lane // kernel.k_unroll
        block = (row + half * kernel.rows_out) // SCALE_BLOCK
        line = expert * (kernel.rows_an_expert // SCALE_BLOCK) + block
        place = line * blocks_of_k + (tile + lane % kernel.k_unroll) * TILE_K // SCALE_BLOCK
        copy_bytes(slot + lane * FP32_BYTES, source + Int64(place) * FP32_BYTES, FP32_BYTES)


@cute.jit
def _copy_tokens(
    slot: Int32,
    source: Int64,
    column: Int32,
    order: Int32,
    count: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Copy a stage of a group's activations; columns from ``count`` on are none, and what they leave is never stored.

    :param slot: where this lane's first piece goes.
    :param source: where it would come from in row 0.
    :param column: its column.
    :param order: shared memory that says which route a column is.
    """
    copies = kernel.token_copies
    for j in cutlass.range_constexpr(copies.copies_a_line):
        ahead = j * copies.rows_a_copy
        if column + Int32(ahead) < count:
            row = load_word(order + (column + Int32(ahead)) * FP32_BYTES)
            if cutlass.const_expr(kernel.role == UP):
                row = row // kernel.top
            address = source + Int64(row) * (kernel.k * BF16_BYTES)
            for line in cutlass.range_constexpr(copies.lines):
                piece = line * copies.lanes_a_row
                copy_async(
                    slot + Int32(kernel.token_place(ahead, piece)), address + piece * COPY_BYTES, through_l1=True
                )


def _tokens(tile: Int32, lane: Int32, kernel: cutlass.Constexpr) -> list[Uint32]:
    """This lane's 16 elements of its column as what the weights are multiplied with, in four instructions of two."""
    place = tile + lane % (4 * kernel.columns) * COPY_BYTES
    found = []
    for plane in range(2):
        words = load_shared4(place + Int32(plane * plane_pitch(kernel.columns)))
        found += words if kernel.weights == BF16 else paired(words, 4 if kernel.weights == MXFP4 else 2)
    return found


def _row_weights(
    stage: Int32, u: int, row: int, lane: Int32, selector: Uint32, kernel: cutlass.Constexpr
) -> list[Uint32]:
    """This lane's 16 elements of one of the 8 rows from ``row`` on, in the order of ``_tokens``."""
    if kernel.weights == FP8:
        place = stage + lane * COPY_BYTES + Int32(u * kernel.weight_tile_bytes + row * ROW_BYTES[FP8])
        return [pair for word in load_shared4(place) for pair in weights_of_bytes(word)]
    if kernel.weights == BF16:
        place = stage + lane * COPY_BYTES + Int32(u * kernel.weight_tile_bytes + row_place(row, TILE_TOKENS))
        return load_shared4(place) + load_shared4(place + Int32(plane_pitch(TILE_TOKENS)))
    place = stage + lane * 8 + Int32(u * kernel.weight_tile_bytes + row * ROW_BYTES[MXFP4])
    scales = stage + lane // 4 * kernel.scale_bytes
    half = load_half(scales + Int32(kernel.weight_stage_bytes + row * kernel.scale_bytes + u * SCALES_A_TILE))
    scale = scale_pair(half, selector)
    first, second = load_shared2(place)
    return weights_of(first, scale) + weights_of(second, scale)


@cute.jit
def _multiply(sums: cute.Tensor, stage: Int32, lane: Int32, selector: Uint32, kernel: cutlass.Constexpr) -> None:
    """sums[row tile][token tile][4] += one stage."""
    behind = kernel.weight_stage_bytes + kernel.scale_stage_bytes
    for u in cutlass.range_constexpr(kernel.k_unroll):
        scales = []
        if cutlass.const_expr(kernel.weights == FP8):
            for half in cutlass.range_constexpr(kernel.scale_halves):
                place = kernel.weight_stage_bytes + (half * kernel.k_unroll + u) * FP32_BYTES
                scales.append(load_shared(stage + Int32(place)))
        tokens = []
        for j in cutlass.range_constexpr(kernel.token_tiles):
            place = behind + u * kernel.token_tile_bytes + j * 2 * plane_pitch(kernel.columns)
            tokens.append(_tokens(stage + Int32(place), lane, kernel))
        for i in cutlass.range_constexpr(kernel.row_tiles):
            upper = _row_weights(stage, u, i * TILE_ROWS, lane, selector, kernel)
            lower = _row_weights(stage, u, i * TILE_ROWS + 8, lane, selector, kernel)
            for j in cutlass.range_constexpr(kernel.token_tiles):
                place = (i * kernel.token_tiles + j) * 4
                held = [sums[place], sums[place + 1], sums[place + 2], sums[place + 3]]
                if cutlass.const_expr(kernel.weights == FP8):
                    held = [Float32(0.0)] * 4
                for m in cutlass.range_constexpr(4):
                    a, b = 2 * m, 2 * m + 1
                    held = mma_16x8x16(held, [upper[a], lower[a], upper[b], lower[b]], [tokens[j][a], tokens[j][b]])
                for e in cutlass.range_constexpr(4):
                    if cutlass.const_expr(kernel.weights == FP8):
                        sums[place + e] = sums[place + e] + held[e] * scales[e // 2 % kernel.scale_halves]
                    else:
                        sums[place + e] = held[e]


def _whole(value: Float32, kernel: cutlass.Constexpr) -> Float32:
    """A sum without the scale that sums are kept in."""
    return value * Float32(SUM_SCALE) if kernel.weights == MXFP4 else value


@cute.jit
def _leave_partials(sums: cute.Tensor, part: Int32, lane: Int32, kernel: cutlass.Constexpr) -> None:
    """Store this warp's sums as [group, pitch] in FP32."""
    for i in cutlass.range_constexpr(kernel.row_tiles):
        for j in cutlass.range_constexpr(kernel.token_tiles):
            for e in cutlass.range_constexpr(4):
                row = lane // 4 + Int32(i * TILE_ROWS + e // 2 * 8)
                token = lane % 4 * 2 + Int32(j * TILE_TOKENS + e % 2)
                value = sums[(i * kernel.token_tiles + j) * 4 + e]
                if token < Int32(kernel.group):
                    store_shared(part + (token * kernel.pitch + row) * FP32_BYTES, value)


@cute.jit
def _add_and_activate(
    parts: Int32,
    hidden: Int64,
    first_output: Int32,
    order: Int32,
    count: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Add the warps' shares of K in the order of warps, and store what is activated of it: hidden [routes, width]."""
    thread, _, _ = cute.arch.thread_idx()
    outputs = kernel.outputs * kernel.row_warps
    part_bytes = kernel.group * kernel.pitch * FP32_BYTES
    for i in cutlass.range(thread, count * outputs, kernel.threads):
        column = i // outputs
        output = i % outputs
        within = output % kernel.outputs
        row = within // 8 * TILE_ROWS + within % 8
        place = parts + output // kernel.outputs * part_bytes + (column * kernel.pitch + row) * FP32_BYTES
        gate = Float32(0.0)
        up = Float32(0.0)
        for warp in cutlass.range_constexpr(kernel.k_warps):
            share = place + Int32(warp * kernel.row_warps * part_bytes)
            gate = gate + load_shared(share)
            up = up + load_shared(share + Int32(8 * FP32_BYTES))
        value = activated(_whole(gate, kernel), _whole(up, kernel), kernel.beta, kernel.linear_beta)
        route = load_word(order + column * FP32_BYTES)
        store_bf16(hidden + Int64(route * kernel.rows_out + first_output + output) * BF16_BYTES, value)


@cute.jit
def _activate(
    sums: cute.Tensor,
    hidden: Int64,
    first_output: Int32,
    order: Int32,
    count: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """The same of a warp that has all of K: a lane holds gate and up of its outputs."""
    for i in cutlass.range_constexpr(kernel.row_tiles):
        for j in cutlass.range_constexpr(kernel.token_tiles):
            for e in cutlass.range_constexpr(2):
                place = (i * kernel.token_tiles + j) * 4 + e
                column = lane % 4 * 2 + Int32(j * TILE_TOKENS + e)
                if column < count:
                    gate, up = _whole(sums[place], kernel), _whole(sums[place + 2], kernel)
                    value = activated(gate, up, kernel.beta, kernel.linear_beta)
                    route = load_word(order + column * FP32_BYTES)
                    output = first_output + lane // 4 + Int32(i * 8)
                    store_bf16(hidden + Int64(route * kernel.rows_out + output) * BF16_BYTES, value)


@cute.jit
def _leave_results(
    sums: cute.Tensor,
    results: Int64,
    first_row: Int32,
    order: Int32,
    count: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Store this warp's rows of each of its routes: results [routes, latent] in FP32."""
    for j in cutlass.range_constexpr(kernel.token_tiles):
        for e in cutlass.range_constexpr(2):
            column = lane % 4 * 2 + Int32(j * TILE_TOKENS + e)
            if column < count:
                route = load_word(order + column * FP32_BYTES)
                base = results + Int64(route * kernel.rows_out + first_row + lane // 4) * FP32_BYTES
                for i in cutlass.range_constexpr(kernel.row_tiles):
                    for half in cutlass.range_constexpr(2):
                        value = _whole(sums[(i * kernel.token_tiles + j) * 4 + 2 * half + e], kernel)
                        store_global(base + (i * TILE_ROWS + 8 * half) * FP32_BYTES, value)


@cute.jit
def _add_routes(
    results: Int64,
    shares: Int64,
    counters: Int64,
    y: Int64,
    first_row: Int32,
    order: Int32,
    count: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Count this warp's rows as done for each of its tokens, and add up those of which they were the last.

    :param shares: routing weights [tokens, top] in FP32.
    :param counters: [tokens, slices of 16 rows], all 0 before the launch; of a warp's slices the first is used.
    :param y: [tokens, latent] in BF16.
    """
    for base in cutlass.range_constexpr(0, kernel.group, WARP):
        last = Int32(0)
        own = Int32(0)
        if lane + Int32(base) < count:
            own = load_word(order + (lane + Int32(base)) * FP32_BYTES) // kernel.top
            before = count_arrivals(counters + Int64(own * kernel.slices + first_row // TILE_ROWS) * FP32_BYTES)
            if before % kernel.top == Int32(kernel.top - 1):
                last = Int32(1)
        mask = Int32(cute.arch.vote_ballot_sync(last != Int32(0)))
        cute.arch.fence_acq_rel_gpu()
        if mask != Int32(0):
            for column in cutlass.range(0, min(WARP, kernel.group)):
                if ((mask >> column) & Int32(1)) != Int32(0):
                    token = cute.arch.shuffle_sync(own, column)
                    _add_token(token, results, shares, y, first_row, lane, kernel)


@cute.jit
def _add_token(
    token: Int32,
    results: Int64,
    shares: Int64,
    y: Int64,
    first_row: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Add this warp's rows of a token's routes, each times its weight, in the order of routes."""
    weights = shares + Int64(token * kernel.top) * FP32_BYTES
    for i in cutlass.range_constexpr(-(-kernel.rows // WARP)):
        if lane < Int32(kernel.rows - i * WARP):
            row = first_row + lane + Int32(i * WARP)
            source = results + (Int64(token * kernel.top) * kernel.rows_out + Int64(row)) * FP32_BYTES
            values = []
            for slot in cutlass.range_constexpr(kernel.top):
                values.append(load_result(source + slot * kernel.rows_out * FP32_BYTES))
            total = Float32(0.0)
            for slot in cutlass.range_constexpr(kernel.top):
                total = total + values[slot] * load_result(weights + slot * FP32_BYTES)
            store_bf16(y + (Int64(token) * kernel.rows_out + Int64(row)) * BF16_BYTES, total)


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
    _copy_weights(weight_slot, source, policy, kernel)
    if cutlass.const_expr(kernel.weights == MXFP4):
        own_scales = scale_source + first * kernel.scale_row_bytes + Int64(at * SCALES_A_TILE)
        _copy_scales(scale_slot, own_scales, lane, kernel)
    if cutlass.const_expr(kernel.weights == FP8):
        _copy_block_scales(scale_slot, scale_source, Int32(expert), row, at, lane, kernel)


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
    _copy_tokens(slot, source + Int64(at * (TILE_K * BF16_BYTES)), column, columns, count, kernel)


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
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    lane = thread % WARP
    warp = cute.arch.make_warp_uniform(thread // WARP)
    row_warp = warp % kernel.row_warps
    k_warp = warp // kernel.row_warps
    up = kernel.role == UP
    routes = tokens * kernel.top
    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=128).toint())
    partials = shared + Int32(kernel.table_bytes)
    all_stages = shared + Int32(kernel.stages_at)

    if cutlass.const_expr(kernel.pdl and up):
        cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_launch_dependents()
    fault = Int64(0)
    if cutlass.const_expr(up):
        if block == Int32(0):
            fault = faults
        for i in cutlass.range(block * kernel.threads + thread, tokens * kernel.slices, blocks * kernel.threads):
            store_global(counters + Int64(i) * FP32_BYTES, Int32(0))
    # In ``down`` the routing is older than the predecessor, which waited for it before it let this kernel start.
    groups = take_routes(ids, routes, shared, all_stages, fault, kernel)
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
    for i in cutlass.range_constexpr(kernel.row_tiles * kernel.token_tiles * 4):
        sums[i] = Float32(0.0)

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
    if cutlass.const_expr(kernel.pdl and not up):
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
        _multiply(sums, stages + now, lane, selector, kernel)
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
                _leave_partials(sums, parts + warp * (kernel.group * kernel.pitch * FP32_BYTES), lane, kernel)
                cute.arch.sync_threads()
                _add_and_activate(parts, out, first_row, columns, count, kernel)
                parity = Int32(kernel.partial_bytes) - parity
            elif cutlass.const_expr(up):
                _activate(sums, out, first_row + row_warp * kernel.outputs, columns, count, lane, kernel)
            else:
                own_row = first_row + row_warp * kernel.outputs
                _leave_results(sums, results, own_row, columns, count, lane, kernel)
                cute.arch.fence_acq_rel_gpu()
                cute.arch.sync_warp()
                _add_routes(results, shares, counters, out, own_row, columns, count, lane, kernel)
            for i in cutlass.range_constexpr(kernel.row_tiles * kernel.token_tiles * 4):
                sums[i] = Float32(0.0)
    cute.arch.cp_async_wait_group(0)


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
        use_pdl=kernel.pdl,
        min_blocks_per_mp=1,
    )
