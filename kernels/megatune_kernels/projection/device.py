"""Device-side building blocks of the projection kernels, as single PTX instructions. Imports the DSL.

Every function is called while a kernel is traced; addresses are integers: ``Int64`` for global memory and ``Int32``
for shared memory. Instruction semantics are those of the PTX ISA 8.7 reference.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint16
from cutlass import Uint32
from cutlass import cute
from cutlass.cute.arch import inline_ptx

from megatune_kernels.projection.geometry import WARP


def load_words(address: Int64, words: int, *, streamed: bool) -> list[Uint32]:
    """Load ``words`` (1, 2 or 4) 32-bit words of global memory, aligned to their size.

    ``streamed`` is for weights: read once, so they do not displace what the L1 is kept for. Not the non-coherent path
    (``.nc``): ptxas moves such loads behind ``griddepcontrol.wait``, and activations may come from the predecessor.
    """
    path = ".L1::no_allocate" if streamed else ""
    vector = f".v{words}" if words > 1 else ""
    outputs = ", ".join(f"{{$w{i}}}" for i in range(words))
    outputs = f"{{{outputs}}}" if words > 1 else outputs
    loaded = inline_ptx(
        f"ld.global{path}{vector}.b32 {outputs}, [{{$r0}}];",
        write_only_types=[Uint32] * words,
        read_only_args=[address],
    )
    return list(loaded) if words > 1 else [loaded]


def bf16_pair(word: Uint32) -> tuple[Float32, Float32]:
    """The two BF16 of a word as FP32, the lower half first: BF16 is the upper half of an FP32."""
    return (word << Uint32(16)).bitcast(Float32), (word & Uint32(0xFFFF0000)).bitcast(Float32)


def copy_async(shared: Int32, address: Int64, *, through_l1: bool) -> None:
    """Start copying 16 bytes from global to shared memory."""
    cache = "ca" if through_l1 else "cg"
    inline_ptx(f"cp.async.{cache}.shared.global [{{$r0}}], [{{$r1}}], 16;", read_only_args=[shared, address])


def load_shared4(shared: Int32) -> list[Uint32]:
    """Load 16 bytes from shared memory."""
    return list(
        inline_ptx(
            "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Uint32] * 4,
            read_only_args=[shared],
        )
    )


def load_shared(shared: Int32) -> Float32:
    return inline_ptx("ld.shared.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[shared])


def store_shared(shared: Int32, value: Float32) -> None:
    inline_ptx("st.shared.f32 [{$r0}], {$r1};", read_only_args=[shared, value])


def load_cluster(shared: Int32, rank: Int32) -> Float32:
    """Load one FP32 from the same place in the shared memory of block ``rank`` of the cluster."""
    remote = inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[shared, rank]
    )
    return inline_ptx("ld.shared::cluster.f32 {$w0}, [{$r0}];", write_only_types=[Float32], read_only_args=[remote])


def store_bf16(address: Int64, value: Float32) -> None:
    """Round to nearest even and store."""
    bits = inline_ptx("cvt.rn.bf16.f32 {$w0}, {$r0};", write_only_types=[Uint16], read_only_args=[value])
    inline_ptx("st.global.b16 [{$r0}], {$r1};", read_only_args=[address, bits])


def mma_16x8x16(sums: list[Float32], a: list[Uint32], b: list[Uint32]) -> list[Float32]:
    """``sums += a · b`` over one warp: a is 16 x 16 (row), b is 16 x 8 (column), BF16; sums are 16 x 8 in FP32."""
    return list(
        inline_ptx(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, "
            "{{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
            write_only_types=[Float32] * 4,
            read_only_args=[*a, *b, *sums],
        )
    )


def fma(a: Float32, b: Float32, c: Float32) -> Float32:
    return cute.math.fma(a, b, c)


def lane_sums(values: list[Float32], lane: Int32) -> Float32:
    """Sum each of ``values`` (a power of two of them, at most 32) over the warp.

    Lane ``l`` is left with the sum of index ``l // (32 // len(values))``. Halving what is exchanged at each step takes
    about n shuffles for n sums, where a butterfly for each would take 5n.
    """
    held: list[Any] = list(values)
    offset = WARP // 2
    while offset:
        if len(held) > 1:
            half = len(held) // 2
            upper = (lane & Int32(offset)) != Int32(0)
            kept = []
            for i in range(half):
                mine = Float32(cutlass.select_(upper, held[i + half], held[i]))
                other = Float32(cutlass.select_(upper, held[i], held[i + half]))
                kept.append(mine + cute.arch.shuffle_sync_bfly(other, offset))
            held = kept
        else:
            held = [held[0] + cute.arch.shuffle_sync_bfly(held[0], offset)]
        offset //= 2
    return held[0]
