"""Device-side building blocks of the experts' kernels: asynchronous copies of any size, dequantisation, activations.
Imports the DSL.

Addresses are ``Int64`` for global memory and ``Int32`` for shared memory; instruction semantics are those of the PTX
ISA 8.8 reference.

MXFP4 in BF16: the three bits of a magnitude, put where exponent and mantissa of a BF16 meet, are that magnitude times
2^-126, zero and the subnormal one half among them. One product with a power of two gives the weight, exactly, where the
scale is from 2^-93 to 2^33, as those of weights are. Sums are kept times 2^-32 so that such scales are numbers of BF16.
Weights are interleaved (``geometry.PAIR_BITS``), so that three of the four pairs of a word take a shift and a mask.
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

LOG2_E = 1.4426950408889634
KEPT = 0x81C081C0
"""Sign and magnitude of both halves, where BF16 has them."""
LAST_SHIFT = 7
LAST_BITS = 0x00D800D8
"""Of the fourth pair: where its bits are after that shift to the right, and what then moves each to its place."""
LAST_SPREAD = 1 + (1 << 5) + (1 << 11)
FIELD_OFFSET = 94
"""From an E8M0 to the exponent of what undoes 2^-126 and leaves 2^-32."""
SUM_SCALE = 2.0**32
LEAST_EXPONENTIAL = 0.25
"""Below, 1 - e^-2x has lost digits and a polynomial has all of them."""


def load_shared2(shared: Int32) -> list[Uint32]:
    """Load 8 bytes from shared memory."""
    return list(
        inline_ptx("ld.shared.v2.b32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Uint32] * 2, read_only_args=[shared])
    )


def load_half(shared: Int32) -> Uint32:
    """Load 2 bytes from shared memory."""
    half = inline_ptx("ld.shared.u16 {$w0}, [{$r0}];", write_only_types=[Uint16], read_only_args=[shared])
    return Uint32(half)


def load_word(shared: Int32) -> Int32:
    return inline_ptx("ld.shared.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[shared])


def store_word(shared: Int32, value: Any) -> None:
    inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[shared, Int32(value)])


def store_words(shared: Int32, first: Any, second: Any) -> None:
    inline_ptx("st.shared.v2.b32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[shared, Int32(first), Int32(second)])


def add_to_set(shared: Int32, bit: Any) -> None:
    """Set bits of a word that other threads set bits of."""
    inline_ptx("red.shared.or.b32 [{$r0}], {$r1};", read_only_args=[shared, Int32(bit)])


def copy_bytes(shared: Int32, address: Int64, size: int) -> None:
    """Start copying 4, 8 or 16 bytes through the L1."""
    inline_ptx(f"cp.async.ca.shared.global [{{$r0}}], [{{$r1}}], {size};", read_only_args=[shared, address])


def evict_first() -> Int64:
    """A policy for what is read once: the L2 gives it up before anything else."""
    return inline_ptx(
        "createpolicy.fractional.L2::evict_first.b64 {$w0}, 1.0;", write_only_types=[Int64], read_only_args=[]
    )


def copy_with_policy(shared: Int32, address: Int64, policy: Int64) -> None:
    """Start copying 16 bytes past the L1."""
    inline_ptx(
        "cp.async.cg.shared.global.L2::cache_hint [{$r0}], [{$r1}], 16, {$r2};",
        read_only_args=[shared, address, policy],
    )


def count_arrivals(address: Int64) -> Int32:
    """Add one to a counter and see how many were before. What others have to see was stored behind a fence, and what
    they stored is loaded behind one."""
    return inline_ptx(
        "atom.relaxed.gpu.global.add.u32 {$w0}, [{$r0}], 1;", write_only_types=[Int32], read_only_args=[address]
    )


def wait_for_count(address: Int64, count: Int32) -> None:
    """Return when a counter has come to a count; what was stored before it was counted is then visible to this
    thread."""
    lines = [
        "{",
        ".reg .pred missing;",
        ".reg .b32 found;",
        "again:",
        "ld.acquire.gpu.global.b32 found, [{$r0}];",
        "setp.lt.s32 missing, found, {$r1};",
        "@missing bra again;",
        "}",
    ]
    inline_ptx("\n".join(lines), read_only_args=[address, count])


def pull(address: Int64, size: int) -> None:
    """Ask for bytes to be brought into the L2, a multiple of 16 of them."""
    inline_ptx(f"cp.async.bulk.prefetch.L2.global [{{$r0}}], {size};", read_only_args=[address])


def load_global(address: Int64) -> Int32:
    """Load a word that no other kernel writes meanwhile."""
    return inline_ptx("ld.global.b32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[address])


def store_global(address: Int64, value: Any) -> None:
    inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[address, value])


def product(pair: Uint32, factor: Uint32) -> Uint32:
    """Of two BF16 and two others, subnormals among them."""
    return inline_ptx("mul.rn.bf16x2 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[pair, factor])


def permute(low: Uint32, high: Uint32, selector: Any) -> Uint32:
    """Four bytes of two words, by the four digits of the selector."""
    return inline_ptx(
        "prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, Uint32(selector)]
    )


def _times_2_to_120(pair: Uint32) -> Uint32:
    # A product of BF16 takes no immediate.
    return inline_ptx(
        "{ .reg .b32 factor; mov.b32 factor, 0x7B807B80; mul.rn.bf16x2 {$w0}, {$r0}, factor; }",
        write_only_types=[Uint32],
        read_only_args=[pair],
    )


def weights_of_bytes(word: Uint32) -> list[Uint32]:
    """Four E4M3 as pairs of BF16: (0, 2), (1, 3).

    The seven bits of a magnitude, put behind the sign of a BF16 and three more bits of exponent, are that magnitude
    times 2^-120. The code of NaN, which no weight has, becomes 480."""
    low = ((word << Uint32(4)) & Uint32(0x07F007F0)) | ((word << Uint32(8)) & Uint32(0x80008000))
    high = ((word >> Uint32(4)) & Uint32(0x07F007F0)) | (word & Uint32(0x80008000))
    return [_times_2_to_120(low), _times_2_to_120(high)]


def scale_pair(scales: Uint32, which: int) -> Uint32:
    """Twice the BF16 that a magnitude is multiplied by, of the E8M0 in one of the bytes of a word."""
    scale = permute(scales, Uint32(0), 0x4440 + which)
    return scale * Uint32(0x10001 << 7) + Uint32(0x10001 * FIELD_OFFSET << 7)


def weights_of(word: Uint32, scale: Uint32) -> list[Uint32]:
    """Eight interleaved E2M1 as pairs of neighbouring BF16, times the scale."""
    last = ((word >> Uint32(LAST_SHIFT)) & Uint32(LAST_BITS)) * Uint32(LAST_SPREAD)
    # Products are another pipe's work than shifts.
    found = [word, word * Uint32(1 << 3), word * Uint32(1 << 6), last]
    return [product(pair & Uint32(KEPT), scale) for pair in found]


def paired(words: list[Uint32]) -> list[Uint32]:
    """Eight neighbouring BF16 as the pairs that ``weights_of_bytes`` makes."""
    found = []
    for first in (0, 2):
        low, high = words[first], words[first + 1]
        found += [permute(low, high, 0x5410), permute(low, high, 0x7632)]
    return found


def _sigmoid(value: Float32) -> Float32:
    return cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(value * Float32(-LOG2_E), fastmath=True))


def _tanh(value: Float32) -> Float32:
    bits = value.bitcast(Uint32)
    size = (bits & Uint32(0x7FFFFFFF)).bitcast(Float32)
    decayed = cute.math.exp2(size * Float32(-2.0 * LOG2_E), fastmath=True)
    large = (Float32(1.0) - decayed) * cute.arch.rcp_approx(Float32(1.0) + decayed)
    square = size * size
    series = Float32(62.0 / 2835.0)
    for term in (-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0):
        series = series * square + Float32(term)
    found = Float32(cutlass.select_(size < Float32(LEAST_EXPONENTIAL), series * size, large))
    return (found.bitcast(Uint32) | (bits & Uint32(0x80000000))).bitcast(Float32)


def activated(gate: Float32, up: Float32, beta: int, linear_beta: int) -> Float32:
    """SiTU: b tanh(gate / b) sigmoid(gate) times l tanh(up / l), both tanh clipping softly; without b, SiLU of the gate
    times up; without l, up as it is."""
    if beta:
        linear = gate
        gate = Float32(float(beta)) * _tanh(linear * Float32(1.0 / beta)) * _sigmoid(linear)
    else:
        gate = gate * _sigmoid(gate)
    if linear_beta:
        up = Float32(float(linear_beta)) * _tanh(up * Float32(1.0 / linear_beta))
    return gate * up
