"""Which routes go together: every block sorts the routing for itself, in shared memory. Imports the DSL.

The order is that of ``geometry.sorted_routes``, by experts and then tokens, whatever the threads' order: an expert's
tokens are a set of bits, and a route's place among them the number of lower bits. Every block comes to the same one.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.experts.device import add_to_set
from megatune_kernels.experts.device import load_global
from megatune_kernels.experts.device import load_word
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.device import store_word
from megatune_kernels.experts.device import store_words
from megatune_kernels.experts.geometry import COUNT_BITS
from megatune_kernels.experts.geometry import GROUP_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import WARP


@cute.jit
def take_routes(
    ids: Int64,
    shares: Int64,
    routes: Int32,
    table: Int32,
    sorting: Int32,
    faults: Int64,
    kernel: cutlass.Constexpr,
) -> Int32:
    """Fill the table of groups, and routes and their shares by place.

    :param table: shared memory, [groups, 2] of expert and of place and count, then twice [routes], then words for
        warps.
    :param sorting: shared memory that is free until all threads have met again, as they have when this returns.
    :param faults: a word that is raised where a route goes to no expert or, where routes are sorted, a token twice to
        the same; 0: none.
    :returns: how many groups there are.
    """
    thread, _, _ = cute.arch.thread_idx()
    order = table + Int32(kernel.order_at)
    found = routes
    if cutlass.const_expr(kernel.sorts):
        found = _sort(ids, shares, routes, table, order, sorting, faults, kernel)
    else:
        for route in cutlass.range(thread, routes, kernel.threads):
            expert = load_global(ids + Int64(route) * FP32_BYTES)
            count = Int32(1)
            if (expert < Int32(0)) | (expert >= Int32(kernel.experts)):
                expert = Int32(0)
                count = Int32(0)
                if faults != Int64(0):
                    store_global(faults, Int32(1))
            store_words(table + route * GROUP_BYTES, expert, (route << COUNT_BITS) | count)
            store_word(order + route * FP32_BYTES, route)
            share = load_global(shares + Int64(route) * FP32_BYTES)
            store_word(order + Int32(kernel.shares_at) + route * FP32_BYTES, share)
        cute.arch.sync_threads()
    return found


@cute.jit
def _sort(
    ids: Int64,
    shares: Int64,
    routes: Int32,
    table: Int32,
    order: Int32,
    sorting: Int32,
    faults: Int64,
    kernel: cutlass.Constexpr,
) -> Int32:
    thread, _, _ = cute.arch.thread_idx()
    words = kernel.mask_words
    starts = sorting + Int32(kernel.experts * words * FP32_BYTES)
    totals = order + Int32(2 * kernel.shares_at)
    # A thread's ids and shares are on their way together, and read once.
    turns = -(-kernel.most_routes // kernel.threads)
    named = cute.make_rmem_tensor(turns, Int32)
    owed = cute.make_rmem_tensor(turns, Int32)
    for turn in cutlass.range_constexpr(turns):
        route = thread + Int32(turn * kernel.threads)
        named[turn] = Int32(-1)
        owed[turn] = Int32(0)
        if route < routes:
            named[turn] = load_global(ids + Int64(route) * FP32_BYTES)
            owed[turn] = load_global(shares + Int64(route) * FP32_BYTES)
    for i in cutlass.range(thread, kernel.experts * words, kernel.threads):
        store_word(sorting + i * FP32_BYTES, Int32(0))
    cute.arch.sync_threads()
    for turn in cutlass.range_constexpr(turns):
        expert = named[turn]
        token = (thread + Int32(turn * kernel.threads)) // kernel.top
        if (expert >= Int32(0)) & (expert < Int32(kernel.experts)):
            add_to_set(sorting + (expert * words + token // 32) * FP32_BYTES, Int32(1) << (token % 32))
    cute.arch.sync_threads()

    # Each thread has some neighbouring experts; routes are counted in the lower half of a word and groups in the upper.
    each = -(-kernel.experts // kernel.threads)
    own = Int32(0)
    for i in cutlass.range(each):
        expert = thread * each + i
        if expert < Int32(kernel.experts):
            own = own + _counts(sorting, expert, kernel)
    lane = thread % WARP
    warp = thread // WARP
    before = own
    for step in cutlass.range_constexpr(5):
        below = cute.arch.shuffle_sync_up(before, 1 << step)
        if lane >= Int32(1 << step):
            before = before + below
    if lane == Int32(WARP - 1):
        store_word(totals + warp * FP32_BYTES, before)
    cute.arch.sync_threads()
    before = before - own
    total = Int32(0)
    for other in cutlass.range_constexpr(kernel.warps):
        count = load_word(totals + Int32(other * FP32_BYTES))
        if Int32(other) < warp:
            before = before + count
        total = total + count
    for i in cutlass.range(each):
        expert = thread * each + i
        if expert < Int32(kernel.experts):
            counts = _counts(sorting, expert, kernel)
            place = before & Int32(0xFFFF)
            store_word(starts + expert * FP32_BYTES, place)
            count = counts & Int32(0xFFFF)
            entry = table + (before >> 16) * GROUP_BYTES
            for first in cutlass.range(0, count, kernel.group):
                size = count - first
                if size > Int32(kernel.group):
                    size = Int32(kernel.group)
                store_words(entry + first // kernel.group * GROUP_BYTES, expert, ((place + first) << COUNT_BITS) | size)
            before = before + counts
    cute.arch.sync_threads()
    for turn in cutlass.range_constexpr(turns):
        expert = named[turn]
        route = thread + Int32(turn * kernel.threads)
        token = route // kernel.top
        if (expert >= Int32(0)) & (expert < Int32(kernel.experts)):
            tokens = sorting + expert * words * FP32_BYTES
            place = load_word(starts + expert * FP32_BYTES)
            for word in cutlass.range_constexpr(words):
                held = load_word(tokens + Int32(word * FP32_BYTES))
                if Int32(word) == token // 32:
                    held = held & ((Int32(1) << (token % 32)) - Int32(1))
                if Int32(word) <= token // 32:
                    place = place + cute.arch.popc(held)
            store_word(order + place * FP32_BYTES, route)
            store_word(order + Int32(kernel.shares_at) + place * FP32_BYTES, owed[turn])
    if (faults != Int64(0)) & (thread == Int32(0)) & ((total & Int32(0xFFFF)) != routes):
        store_global(faults, Int32(1))
    cute.arch.sync_threads()
    return total >> 16


def _counts(sorting: Int32, expert: Int32, kernel: cutlass.Constexpr) -> Int32:
    """Routes of an expert, and its groups times 2^16."""
    count = Int32(0)
    for word in range(kernel.mask_words):
        count = count + cute.arch.popc(load_word(sorting + (expert * kernel.mask_words + Int32(word)) * FP32_BYTES))
    return count + ((count + Int32(kernel.group - 1)) // kernel.group << 16)
