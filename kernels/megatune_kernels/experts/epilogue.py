"""What becomes of the sums of a unit: activations in ``up``, the weighted sum over experts in ``down``. Imports the
DSL."""

from __future__ import annotations

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.experts.device import SUM_SCALE
from megatune_kernels.experts.device import activated
from megatune_kernels.experts.device import count_arrivals
from megatune_kernels.experts.device import load_result
from megatune_kernels.experts.device import load_word
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.projection.device import load_shared
from megatune_kernels.projection.device import store_bf16
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.projection.geometry import TILE_TOKENS
from megatune_kernels.projection.geometry import WARP


def _whole(value: Float32, kernel: cutlass.Constexpr) -> Float32:
    """A sum without the scale that sums are kept in."""
    return value * Float32(SUM_SCALE) if kernel.weights == MXFP4 else value


@cute.jit
def leave_partials(sums: cute.Tensor, part: Int32, lane: Int32, kernel: cutlass.Constexpr) -> None:
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
def add_and_activate(
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
def activate(
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
def leave_results(
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
def add_routes(
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
        # What others stored before they counted is there for all lanes.
        cute.arch.fence_acq_rel_gpu()
        cute.arch.sync_warp()
        mask = Int32(cute.arch.vote_ballot_sync(last != Int32(0)))
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
