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
from megatune_kernels.experts.device import load_word
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
    first: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Add the warps' shares of K in the order of warps, and store what is activated of it: hidden [routes, width].

    :param first: the first output of this thread, other threads having the others.
    """
    outputs = kernel.outputs
    part_bytes = kernel.group * kernel.pitch * FP32_BYTES
    for i in cutlass.range(first, count * outputs, kernel.threads):
        column = i // outputs
        output = i % outputs
        row = output // 8 * TILE_ROWS + output % 8
        place = parts + (column * kernel.pitch + row) * FP32_BYTES
        gate = Float32(0.0)
        up = Float32(0.0)
        for warp in cutlass.range_constexpr(kernel.k_warps):
            share = place + Int32(warp * part_bytes)
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
def clear(own: Int32, lane: Int32, tokens: Int32, kernel: cutlass.Constexpr) -> None:
    """Set this warp's sums [tokens, pitch] of ``down`` to 0."""
    for i in cutlass.range(lane, tokens * kernel.pitch, WARP):
        store_shared(own + i * FP32_BYTES, Float32(0.0))
    cute.arch.sync_warp()


@cute.jit
def add_to_tokens(
    sums: cute.Tensor,
    own: Int32,
    order: Int32,
    count: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Add this warp's rows of a group to its sums [tokens, pitch], each route's times its share. The tokens of a group
    are all different, so no two lanes have the same place."""
    for j in cutlass.range_constexpr(kernel.token_tiles):
        for e in cutlass.range_constexpr(2):
            column = lane % 4 * 2 + Int32(j * TILE_TOKENS + e)
            if column < count:
                place = order + column * FP32_BYTES
                token = load_word(place) // kernel.top
                share = _whole(load_shared(place + Int32(kernel.shares_at)), kernel)
                base = own + (token * kernel.pitch + lane // 4) * FP32_BYTES
                held = []
                for row in cutlass.range_constexpr(2 * kernel.row_tiles):
                    held.append(load_shared(base + Int32(row * 8 * FP32_BYTES)))
                for row in cutlass.range_constexpr(2 * kernel.row_tiles):
                    value = sums[(row // 2 * kernel.token_tiles + j) * 4 + row % 2 * 2 + e]
                    store_shared(base + Int32(row * 8 * FP32_BYTES), held[row] + value * share)
    cute.arch.sync_warp()


@cute.jit
def add_warps(parts: Int32, y: Int64, first_row: Int32, tokens: Int32, kernel: cutlass.Constexpr) -> None:
    """Add up the warps' sums of a block's rows in the order of warps: y [tokens, latent] in BF16."""
    thread, _, _ = cute.arch.thread_idx()
    part_bytes = kernel.padded_tokens * kernel.pitch * FP32_BYTES
    for i in cutlass.range(thread, tokens * kernel.rows, kernel.threads):
        token = i // kernel.rows
        row = i % kernel.rows
        place = parts + (token * kernel.pitch + row) * FP32_BYTES
        total = Float32(0.0)
        for warp in cutlass.range_constexpr(kernel.warps):
            total = total + load_shared(place + Int32(warp * part_bytes))
        store_bf16(y + (Int64(token) * kernel.rows_out + Int64(first_row + row)) * BF16_BYTES, total)
