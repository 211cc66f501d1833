"""What a warp copies into a stage, and what it makes of one. Imports the DSL.

A lane copies what is neighbouring in memory, and multiplies what its fragments need; ``geometry.Stream`` has the places
where both agree.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute

from megatune_kernels.experts.device import copy_bytes
from megatune_kernels.experts.device import copy_with_policy
from megatune_kernels.experts.device import load_half
from megatune_kernels.experts.device import load_word
from megatune_kernels.experts.device import paired
from megatune_kernels.experts.device import scale_pair
from megatune_kernels.experts.device import weights_of
from megatune_kernels.experts.device import weights_of_bytes
from megatune_kernels.experts.geometry import BF16
from megatune_kernels.experts.geometry import EVICT_FIRST
from megatune_kernels.experts.geometry import FP8
from megatune_kernels.experts.geometry import SCALE_BLOCK
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import plane_pitch
from megatune_kernels.projection.device import copy_async
from megatune_kernels.projection.device import load_shared
from megatune_kernels.projection.device import load_shared4
from megatune_kernels.projection.device import mma_16x8x16
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP


@cute.jit
def copy_weights(slot: Int32, source: Int64, policy: Int64, kernel: cutlass.Constexpr) -> None:
    """Copy a stage of this warp's tiles of rows.

    :param slot: where this lane's first piece goes.
    :param source: where it comes from.
    """
    for i in cutlass.range_constexpr(kernel.row_tiles):
        for n in cutlass.range_constexpr(kernel.k_unroll * kernel.pieces):
            place = slot + Int32(kernel.weight_place(i, 0, n))
            address = source + Int64(i * kernel.row_tile_bytes + n * WARP * COPY_BYTES)
            if cutlass.const_expr(kernel.cache == EVICT_FIRST):
                copy_with_policy(place, address, policy)
            else:
                copy_async(place, address, through_l1=False)


@cute.jit
def copy_scales(slot: Int32, source: Int64, lane: Int32, kernel: cutlass.Constexpr) -> None:
    """Copy the scales of a stage, in MXFP4.

    :param slot: where those of the stage begin.
    :param source: where those of the warp's first tile of rows do.
    """
    count = kernel.row_tiles * kernel.scale_pieces
    for i in cutlass.range_constexpr(-(-count // WARP)):
        number = lane + Int32(i * WARP)
        row_tile, piece = number // kernel.scale_pieces, number % kernel.scale_pieces
        if number < Int32(count):
            offset = row_tile * kernel.scale_row_tile_bytes + piece * COPY_BYTES
            copy_async(slot + number * COPY_BYTES, source + Int64(offset), through_l1=False)


@cute.jit
def copy_block_scales(
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
def find_tokens(sources: cute.Tensor, column: Int32, order: Int32, count: Int32, kernel: cutlass.Constexpr) -> None:
    """Look up where the activations are that this lane copies of a group, in bytes; -1 from ``count`` on, where there
    are none and what is left is never stored.

    :param sources: [copies of a line].
    :param column: of this lane's first copy.
    :param order: shared memory that says which route a column is.
    """
    copies = kernel.token_copies
    for j in cutlass.range_constexpr(copies.copies_a_line):
        own = column + Int32(j * copies.rows_a_copy)
        found = Int32(-1)
        if own < count:
            row = load_word(order + own * FP32_BYTES)
            if cutlass.const_expr(kernel.role == UP):
                row = row // kernel.top
            found = row * (kernel.k * BF16_BYTES)
        sources[j] = found


@cute.jit
def copy_tokens(slot: Int32, source: Int64, sources: cute.Tensor, kernel: cutlass.Constexpr) -> None:
    """Copy a stage of a group's activations.

    :param slot: where this lane's first piece goes.
    :param source: where it would come from in row 0.
    :param sources: of ``find_tokens``.
    """
    copies = kernel.token_copies
    for j in cutlass.range_constexpr(copies.copies_a_line):
        if sources[j] >= Int32(0):
            address = source + Int64(sources[j])
            for line in cutlass.range_constexpr(copies.lines):
                piece = line * copies.lanes_a_row
                place = slot + Int32(kernel.token_place(j * copies.rows_a_copy, piece))
                copy_async(place, address + piece * COPY_BYTES, through_l1=True)


def _tokens(tile: Int32, lane: Int32, kernel: cutlass.Constexpr) -> list[Uint32]:
    """This lane's 16 elements of its column as what the weights are multiplied with, in four instructions of two."""
    place = tile + lane % (4 * kernel.columns) * COPY_BYTES
    found = []
    for plane in range(2):
        words = load_shared4(place + Int32(plane * plane_pitch(kernel.columns)))
        found += paired(words) if kernel.weights == FP8 else words
    return found


def _rows(stage: Int32, row_tile: int, tile: int, lane: Int32, kernel: cutlass.Constexpr) -> list[list[Uint32]]:
    """This lane's 16 elements of its upper and of its lower row, in the order of ``_tokens``."""
    words = []
    for piece in range(kernel.pieces):
        words += load_shared4(stage + lane * COPY_BYTES + Int32(kernel.weight_place(row_tile, tile, piece)))
    half = len(words) // 2
    if kernel.weights == BF16:
        return [words[:half], words[half:]]
    if kernel.weights == FP8:
        return [[pair for word in words[i : i + half] for pair in weights_of_bytes(word)] for i in (0, half)]
    place = stage + lane // 2 * 2 + Int32(kernel.weight_stage_bytes + kernel.scale_place(row_tile, tile))
    both = load_half(place)
    scales = [scale_pair(both, each) for each in range(2)]
    return [[pair for word in words[2 * i : 2 * i + 2] for pair in weights_of(word, scales[i])] for i in range(2)]


@cute.jit
def multiply(sums: cute.Tensor, stage: Int32, lane: Int32, kernel: cutlass.Constexpr) -> None:
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
            upper, lower = _rows(stage, i, u, lane, kernel)
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
