"""Variant ``simt``: vectorised dot products on the CUDA cores. Imports the DSL.

A block computes ``rows`` outputs for every token. Its threads walk K together, each with a vector of ``vector``
elements at a time, and keep the partial sums of rows x tokens in FP32 registers; warps and then the blocks of a
cluster (split-K) are summed at the end. The weights of ``k_unroll`` steps are loaded one group ahead of the
arithmetic, the first group even before the predecessor's results are waited for.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute

from megatune_kernels.projection.device import bf16_pair
from megatune_kernels.projection.device import fma
from megatune_kernels.projection.device import lane_sums
from megatune_kernels.projection.device import load_words
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.epilogue import sum_and_store
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


@cute.jit
def _load_weights(
    held: cute.Tensor, starts: list[Int64], offset: Int64, stride: Int64, kernel: cutlass.Constexpr, steps: Any
) -> None:
    words = kernel.vector // 2
    for u in cutlass.range_constexpr(steps):
        for r in cutlass.range_constexpr(kernel.rows):
            loaded = load_words(starts[r] + offset + stride * u, words, streamed=True)
            for i in cutlass.range_constexpr(words):
                held[(u * kernel.rows + r) * words + i] = loaded[i]


@cute.jit
def _accumulate(
    sums: cute.Tensor,
    weights: cute.Tensor,
    x: Int64,
    width_bytes: Int64,
    offset: Int64,
    stride: Int64,
    kernel: cutlass.Constexpr,
    steps: cutlass.Constexpr,
) -> None:
    words = kernel.vector // 2
    for u in cutlass.range_constexpr(steps):
        for t in cutlass.range_constexpr(kernel.tokens):
            loaded = load_words(x + width_bytes * t + offset + stride * u, words, streamed=False)
            for i in cutlass.range_constexpr(words):
                x_low, x_high = bf16_pair(loaded[i])
                for r in cutlass.range_constexpr(kernel.rows):
                    w_low, w_high = bf16_pair(weights[(u * kernel.rows + r) * words + i])
                    place = t * kernel.rows + r
                    sums[place] = fma(x_high, w_high, fma(x_low, w_low, sums[place]))


@cute.kernel
def _kernel(x: cute.Pointer, w: cute.Pointer, y: cute.Pointer, n: Int32, k: Int32, kernel: cutlass.Constexpr) -> None:
    """x [tokens, K], w [n, K], y [tokens, n], all BF16 and row-major. Grid (ceil(n / rows), split_k)."""
    thread, _, _ = cute.arch.thread_idx()
    tile, rank, _ = cute.arch.block_idx()
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_launch_dependents()
    width = k
    if cutlass.const_expr(kernel.static_k):
        width = kernel.static_k
    steps = kernel.steps(width)
    groups = steps // kernel.k_unroll
    width_bytes = Int64(width) * BF16_BYTES
    stride = Int64(kernel.block * kernel.vector * BF16_BYTES)
    group_bytes = stride * kernel.k_unroll
    first_row = tile * kernel.rows
    start = (Int64(rank) * Int64(width // kernel.split_k) + Int64(thread * kernel.vector)) * BF16_BYTES
    starts = []
    for r in cutlass.range_constexpr(kernel.rows):
        # Rows past the end read the last row again: their sums are not stored.
        row = cutlass.min(first_row + r, n - 1)
        starts.append(w.toint() + Int64(row) * width_bytes + start)
    x_start = x.toint() + start
    sums = cute.make_rmem_tensor(kernel.sums, Float32)
    for i in cutlass.range_constexpr(kernel.sums):
        sums[i] = Float32(0.0)
    now = cute.make_rmem_tensor(kernel.k_unroll * kernel.words_a_step, Uint32)
    ahead = cute.make_rmem_tensor(kernel.k_unroll * kernel.words_a_step, Uint32)
    for i in cutlass.range_constexpr(kernel.k_unroll * kernel.words_a_step):
        ahead[i] = Uint32(0)

    if groups > 0:
        _load_weights(ahead, starts, Int64(0), stride, kernel, kernel.k_unroll)
    if cutlass.const_expr(kernel.pdl):
        cute.arch.griddepcontrol_wait()
    for g in cutlass.range(groups, unroll_full=kernel.unrolled):
        for i in cutlass.range_constexpr(kernel.k_unroll * kernel.words_a_step):
            now[i] = ahead[i]
        if g + 1 < groups:
            _load_weights(ahead, starts, Int64(g + 1) * group_bytes, stride, kernel, kernel.k_unroll)
        _accumulate(sums, now, x_start, width_bytes, Int64(g) * group_bytes, stride, kernel, kernel.k_unroll)
    # What is left of K: whole steps that fill no group, then a step that only some of the threads have.
    for s in cutlass.range(groups * kernel.k_unroll, steps + 1):
        if s * (kernel.block * kernel.vector) + thread * kernel.vector < width // kernel.split_k:
            _load_weights(now, starts, Int64(s) * stride, stride, kernel, 1)
            _accumulate(sums, now, x_start, width_bytes, Int64(s) * stride, stride, kernel, 1)

    shared = Int32(cute.arch.get_dyn_smem(Float32, alignment=16).toint())
    lane = thread % WARP
    warp = thread // WARP
    for first in cutlass.range_constexpr(0, kernel.sums, WARP):
        held = _power_of_two(min(kernel.sums - first, WARP))
        value = lane_sums([sums[i] if i < kernel.sums else Float32(0.0) for i in range(first, first + held)], lane)
        element = first + lane // (WARP // held)
        if lane % (WARP // held) == 0 and element < kernel.sums:
            store_shared(shared + (warp * kernel.sums + element) * FP32_BYTES, value)
    cute.arch.sync_threads()
    sum_and_store(
        shared,
        y.toint(),
        Int32(kernel.tokens),
        n,
        first_row,
        thread,
        rank,
        parts=kernel.warps,
        rows=kernel.rows,
        pitch=kernel.rows,
        padded_tokens=kernel.tokens,
        split_k=kernel.split_k,
        threads=kernel.block,
    )


@cute.jit
def launch(
    x: cute.Pointer, w: cute.Pointer, y: cute.Pointer, n: Int32, k: Int32, stream: Any, kernel: cutlass.Constexpr
) -> None:
    """What is compiled; runners launch the cubin themselves."""
    _kernel(x, w, y, n, k, kernel).launch(
        grid=[(n + kernel.rows - 1) // kernel.rows, kernel.split_k, 1],
        block=[kernel.block, 1, 1],
        cluster=[1, kernel.split_k, 1] if kernel.split_k > 1 else None,
        smem=kernel.shared_bytes,
        stream=stream,
        use_pdl=kernel.pdl,
        min_blocks_per_mp=1,
    )
