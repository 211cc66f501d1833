"""The end that both kernels share: sum the partials of a block, then of a cluster, in a fixed order. Imports the DSL.

The order of every sum is that of warps within a block and of ranks within a cluster, never that of arrival, so a
config gives the same bits each time.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.projection.device import load_cluster
from megatune_kernels.projection.device import load_shared
from megatune_kernels.projection.device import store_bf16
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES


@cute.jit
def sum_and_store(
    shared: Int32,
    y: Int64,
    tokens: Int32,
    n: Int32,
    first_row: Int32,
    thread: Int32,
    rank: Int32,
    parts: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    pitch: cutlass.Constexpr,
    padded_tokens: cutlass.Constexpr,
    split_k: cutlass.Constexpr,
    threads: cutlass.Constexpr,
) -> None:
    """y[token, first_row + row] = sum of shared[part][token][row] over parts and over the blocks of the cluster.

    :param shared: address of FP32 partials [parts, padded_tokens, pitch], of which [:, :tokens, :rows] are set and
        visible to the whole block.
    :param y: address of the output [tokens, n] in BF16.
    :param rank: this block's rank in its cluster of ``split_k``.
    """
    part_bytes = padded_tokens * pitch * FP32_BYTES
    total = shared + Int32(parts * part_bytes if parts > 1 else 0)
    count = tokens * Int32(rows)
    if cutlass.const_expr(split_k == 1 or parts > 1):
        for i in cutlass.range(thread, count, threads):
            token = i // rows
            row = i % rows
            place = shared + (token * pitch + row) * FP32_BYTES
            value = load_shared(place)
            for part in cutlass.range_constexpr(1, parts):
                value = value + load_shared(place + Int32(part * part_bytes))
            if cutlass.const_expr(split_k == 1):
                if first_row + row < n:
                    store_bf16(y + (Int64(token) * Int64(n) + Int64(first_row + row)) * BF16_BYTES, value)
            else:
                store_shared(total + (token * pitch + row) * FP32_BYTES, value)
    if cutlass.const_expr(split_k > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for i in cutlass.range(rank * threads + thread, count, threads * split_k):
            token = i // rows
            row = i % rows
            place = total + (token * pitch + row) * FP32_BYTES
            value = Float32(0.0)
            for peer in cutlass.range_constexpr(split_k):
                value = value + load_cluster(place, Int32(peer))
            if first_row + row < n:
                store_bf16(y + (Int64(token) * Int64(n) + Int64(first_row + row)) * BF16_BYTES, value)
        # No block may leave while a peer still reads its shared memory.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
