"""Units, of which each is some rows of one expert with the tokens of one group: who takes which, and what they will
need next. Imports the DSL.

Units are counted through: in ``up`` by groups and then rows, so that the warps of a block have neighbouring rows,
mostly of one group, whose tokens the L1 then holds for all of them; in ``down``, where a block has the same rows of all
experts, by groups. A warp has its first unit and every so many from there on, or, where warps steal, the next one that
is left each time: it asks for that a whole unit ahead, so that it never waits for the answer. Results do not depend on
who takes a unit of ``up``.
"""

from __future__ import annotations

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import cute

from megatune_kernels.experts.device import count_arrivals
from megatune_kernels.experts.device import load_shared2
from megatune_kernels.experts.device import pull
from megatune_kernels.experts.device import store_global
from megatune_kernels.experts.geometry import COUNT_BITS
from megatune_kernels.experts.geometry import GROUP_BYTES
from megatune_kernels.experts.geometry import MIB
from megatune_kernels.experts.geometry import PULL_BYTES
from megatune_kernels.experts.geometry import TAKEN_WORD
from megatune_kernels.experts.geometry import UP
from megatune_kernels.projection.geometry import FP32_BYTES


def dealt(
    block: Int32, blocks: Int32, warp: Int32, groups: Int32, kernel: cutlass.Constexpr
) -> tuple[Int32, Int32, Int32]:
    """A warp's first unit, how far it is to the next one, and where they end."""
    if kernel.role == UP:
        first = block * kernel.unit_warps + warp // kernel.k_warps
        return first, blocks * kernel.unit_warps, groups * kernel.row_blocks
    return warp, Int32(kernel.warps), cutlass.select_(block < Int32(kernel.row_blocks), groups, Int32(0))


def place(unit: Int32, block: Int32, kernel: cutlass.Constexpr) -> tuple[Int32, Int32]:
    """Which group a unit is of, and which block of rows."""
    if kernel.role == UP:
        return unit // kernel.row_blocks, unit % kernel.row_blocks
    return unit, block


def group_at(table: Int32, group: Int32, kernel: cutlass.Constexpr) -> tuple[Int32, Int32, Int32]:
    """A group's expert, where in shared memory its routes are, and how many."""
    expert, found = load_shared2(table + group * GROUP_BYTES)
    order = table + Int32(kernel.order_at)
    return (
        Int32(expert),
        order + (Int32(found) >> COUNT_BITS) * FP32_BYTES,
        Int32(found) & Int32((1 << COUNT_BITS) - 1),
    )


@cute.jit
def ask_for_unit(faults: Int64, lane: Int32) -> Int32:
    """Take the next unit that is left, after all first ones: the answer is in lane 0."""
    found = Int32(0)
    if lane == Int32(0):
        found = count_arrivals(faults + TAKEN_WORD * FP32_BYTES)
    return found


@cute.jit
def end_stealing(faults: Int64, thread: Int32, blocks: Int32) -> None:
    """The block that is through last leaves the counts as they were."""
    cute.arch.sync_threads()
    if thread == Int32(0):
        taken = faults + TAKEN_WORD * FP32_BYTES
        through = taken + FP32_BYTES
        cute.arch.fence_acq_rel_gpu()
        if count_arrivals(through) == blocks - Int32(1):
            store_global(taken, Int32(0))
            store_global(through, Int32(0))


@cute.jit
def pull_next(
    w: Int64,
    scales: Int64,
    table: Int32,
    groups: Int32,
    first: Int32,
    step: Int32,
    lane: Int32,
    kernel: cutlass.Constexpr,
) -> None:
    """Ask for what ``down`` will read of the first experts, up to ``depth_mib``.

    :param first: this warp's first request, every ``step``-th of all being its own.
    """
    each = kernel.pulls
    whole = -(-kernel.next_bytes // PULL_BYTES)
    end = groups * each
    most = Int32(kernel.depth_mib * MIB // PULL_BYTES)
    if end > most:
        end = most
    if lane == Int32(0):
        for number in cutlass.range(first, end, step):
            group = number // each
            part = number % each
            expert, _, _ = group_at(table, group, kernel)
            before = Int32(-1)
            if group > Int32(0):
                before, _, _ = group_at(table, group - Int32(1), kernel)
            # Another group of the same expert has asked already.
            if before != expert:
                if part < Int32(whole):
                    _pull_piece(w + Int64(expert) * kernel.next_bytes, part, kernel.next_bytes)
                else:
                    if cutlass.const_expr(kernel.next_scale_bytes > 0):
                        source = scales + Int64(expert) * kernel.next_scale_bytes
                        _pull_piece(source, part - Int32(whole), kernel.next_scale_bytes)


@cute.jit
def _pull_piece(source: Int64, part: Int32, size: cutlass.Constexpr) -> None:
    """Ask for one of the pieces of ``size`` bytes."""
    rest = size % PULL_BYTES
    at = source + Int64(part) * PULL_BYTES
    if cutlass.const_expr(rest == 0):
        pull(at, PULL_BYTES)
    else:
        if part < Int32(size // PULL_BYTES):
            pull(at, PULL_BYTES)
        else:
            pull(at, rest)
