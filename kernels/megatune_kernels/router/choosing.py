"""How a warp chooses the experts of a token. Imports the DSL.

Everything else waits for it in the end, so nothing is left to it that others can do. Each lane has every 32nd four of
the scores; the ``top``-th largest of the lanes' maxima is a bound that all of the chosen reach, so few candidates are
left, and each counts how many come before it: larger ones, and equal ones of a lower id. The order of that count and of
the sum of the chosen scores is fixed, so all ranks agree.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute
from cutlass.cute.arch import inline_ptx

from megatune_kernels.projection.device import load_shared
from megatune_kernels.projection.device import load_shared4
from megatune_kernels.projection.device import store_shared
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.reduction.device import load
from megatune_kernels.reduction.device import send
from megatune_kernels.reduction.device import store
from megatune_kernels.reduction.device import wait_for_words
from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.router.geometry import LANE_STRIDE
from megatune_kernels.router.geometry import PAIR_BYTES
from megatune_kernels.router.geometry import QUAD
from megatune_kernels.router.geometry import SPARE_CANDIDATES

SIGN = 0x80000000
LEAST_SUM = 1e-20
"""Added to the sum of the chosen scores before dividing by it, as the reference model does."""


def either(condition: Any, yes: Any, no: Any) -> Int32:
    return Int32(cutlass.select_(condition, Int32(yes), Int32(no)))


def _ordered(score: Float32) -> Uint32:
    """A word that is larger for larger numbers; 0, the least, for what is not a number."""
    bits = score.bitcast(Uint32)
    flipped = Uint32(cutlass.select_(bits >= Uint32(SIGN), ~bits, bits | Uint32(SIGN)))
    return Uint32(cutlass.select_(score == score, flipped, Uint32(0)))


def _store_pair(shared: Int32, first: Uint32, second: Uint32) -> None:
    inline_ptx("st.shared.v2.b32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[shared, first, second])


def _load_pair(shared: Int32) -> list[Uint32]:
    return list(
        inline_ptx("ld.shared.v2.b32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[Uint32] * 2, read_only_args=[shared])
    )


def _keep(key: Uint32, bound: Uint32, pair: Int32, expert: Int32, place: Int32, score: Float32) -> None:
    """Store a candidate if its key reaches the bound. No branch: lanes would take nearly every one of them apart."""
    inline_ptx(
        "{ .reg .pred kept; setp.ge.u32 kept, {$r0}, {$r1}; @kept st.shared.v2.b32 [{$r2}], {{$r0}, {$r3}}; "
        "@kept st.shared.f32 [{$r4}], {$r5}; }",
        read_only_args=[key, bound, pair, Uint32(expert), place, score],
    )


def _biases(bias: Int64, lane: Int32, kernel: cutlass.Constexpr) -> cute.Tensor:
    """Of the experts whose scores a lane has: asked for before those are waited for."""
    held = cute.make_rmem_tensor(kernel.accesses * QUAD, Float32)
    for j in range(kernel.accesses):
        words = load(bias + Int64(j * LANE_STRIDE + lane * QUAD) * FP32_BYTES, QUAD)
        for e in range(QUAD):
            held[j * QUAD + e] = words[e].bitcast(Float32)
    return held


@cute.jit
def _candidates(
    scores: cute.Tensor, biases: cute.Tensor, lane: Int32, found: Int32, kernel: cutlass.Constexpr
) -> Int32:
    """Keep the experts that may be among the chosen.

    :param scores: this lane's, every 32nd four of the experts.
    :param found: shared memory of this warp: pairs of order and id [experts + spare], then scores [experts].
    :returns: how many there are. Behind them are as many that come last as ``SPARE_CANDIDATES``.
    """
    keys = cute.make_rmem_tensor(kernel.accesses * QUAD, Uint32)
    best = Uint32(0)
    for i in cutlass.range_constexpr(kernel.accesses * QUAD):
        key = _ordered(scores[i] + biases[i])
        keys[i] = key
        best = Uint32(cutlass.select_(key > best, key, best))
    # Which place a lane's best has among the lanes'; equal ones in the order of lanes.
    place = Int32(0)
    for other in cutlass.range_constexpr(WARP):
        theirs = cute.arch.shuffle_sync(best, other)
        before = (theirs > best) | ((theirs == best) & (Int32(other) < lane))
        place = place + either(before, 1, 0)
    bound = cute.arch.shuffle_sync(best, _place_of(place == kernel.top - 1))
    below = cute.arch.lanemask_lt()
    count = Int32(0)
    for j in cutlass.range_constexpr(kernel.accesses):
        for e in cutlass.range_constexpr(QUAD):
            key = keys[j * QUAD + e]
            mask = cute.arch.vote_ballot_sync(key >= bound)
            at = count + cute.arch.popc(Int32(mask & below))
            expert = Int32(j * LANE_STRIDE + e) + lane * QUAD
            pair, score = found + at * PAIR_BYTES, found + Int32(kernel.pairs_bytes) + at * FP32_BYTES
            _keep(key, bound, pair, expert, score, scores[j * QUAD + e])
            count = count + cute.arch.popc(Int32(mask))
    if lane < SPARE_CANDIDATES:
        _store_pair(found + (count + lane) * PAIR_BYTES, Uint32(0), Uint32(0xFFFFFFFF))
    return count


def _place_of(condition: Any) -> Int32:
    """The one lane for which it holds."""
    mask = Uint32(cute.arch.vote_ballot_sync(condition))
    return inline_ptx("bfind.u32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[mask])


@cute.jit
def finish(
    token: Int32,
    mailbox: Int64,
    bias: Int64,
    ids: Int64,
    weights: Int64,
    lane: Int32,
    found: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Choose a token's experts: ids [tokens, top] in the order of their scores, weights [tokens, top] that sum to
    one."""
    start = mailbox + Int64(token * kernel.experts + lane * QUAD) * FP32_BYTES
    steps = [j * LANE_STRIDE * FP32_BYTES for j in range(kernel.accesses)]
    biases = _biases(bias, lane, kernel)
    (received,) = wait_for_words([start], steps, QUAD, backoff=0)
    scores = cute.make_rmem_tensor(kernel.accesses * QUAD, Float32)
    for j in cutlass.range_constexpr(kernel.accesses):
        send(start + Int64(steps[j]), [Uint32(ARMED[SENTINEL])] * QUAD)
        for e in cutlass.range_constexpr(QUAD):
            scores[j * QUAD + e] = received[j][e].bitcast(Float32)
    count = _candidates(scores, biases, lane, found, kernel)
    cute.arch.sync_warp()
    plane = found + Int32(kernel.pairs_bytes)
    chosen = plane + Int32(kernel.experts * FP32_BYTES)
    for c in cutlass.range(lane, count, WARP):
        key, expert = _load_pair(found + c * PAIR_BYTES)
        before = Int32(0)
        for first in cutlass.range(0, count, SPARE_CANDIDATES):
            others = []
            for d in cutlass.range_constexpr(0, SPARE_CANDIDATES, 2):
                others.append(load_shared4(found + (first + d) * PAIR_BYTES))
            for d in cutlass.range_constexpr(SPARE_CANDIDATES):
                other, other_expert = others[d // 2][d % 2 * 2], others[d // 2][d % 2 * 2 + 1]
                before = before + either((other > key) | ((other == key) & (other_expert < expert)), 1, 0)
        if before < kernel.top:
            store(ids + Int64(token * kernel.top + before) * FP32_BYTES, [expert])
            store_shared(chosen + before * FP32_BYTES, load_shared(plane + c * FP32_BYTES))
    cute.arch.sync_warp()
    score = Float32(0.0)
    if lane < kernel.top:
        score = load_shared(chosen + lane * FP32_BYTES)
    total = score
    for step in cutlass.range_constexpr(5):
        total = total + cute.arch.shuffle_sync_bfly(total, 16 >> step)
    if lane < kernel.top:
        # The exact division is a call, which the audit cannot follow; a reciprocal errs by one unit in the last place.
        weight = score * cute.arch.rcp_approx(total + Float32(LEAST_SUM))
        store(weights + Int64(token * kernel.top + lane) * FP32_BYTES, [weight.bitcast(Uint32)])
    # The next token's candidates take the same place.
    cute.arch.sync_warp()
