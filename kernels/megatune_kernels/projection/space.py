"""What can be tuned of a projection, and the one place that says which configs are legal and why."""

from __future__ import annotations

from megatune_kernels.operator import Workload
from megatune_kernels.projection.geometry import Mma
from megatune_kernels.projection.geometry import Simt
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import Architecture

SIMT_TOKENS = 8
"""Above this the CUDA cores, at 2 tokens flops an element of w, take longer than memory does: measured on an H200 at 16
tokens, twice as long as the tensor cores."""
MMA_TOKENS = 64
NARROW_K = 1024
"""Elements of K a block below which 8-byte loads can pay: with 16-byte loads too few threads would have work."""


def projection_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a workload; a variant that has no legal config there is left out."""
    variants = []
    if workload.tokens <= SIMT_TOKENS:
        variants.append(_simt(workload, arch))
    if workload.tokens <= MMA_TOKENS:
        variants.append(_mma(workload, arch))
    return Space(tuple(variant for variant in variants if variant.has_configs))


def _simt(workload: Workload, arch: Architecture) -> VariantSpace:
    """Defaults: at 1 to 4 tokens 8 % slower than each cell's best, geometric mean of 52 recorded cells of an H200."""

    kernel = derived(lambda params: Simt.of(workload, params))

    return VariantSpace(
        "simt",
        (
            Parameter("block", (32, 64, 128, 256), 64, "threads a block", changes_bits=True),
            Parameter("rows", (1, 2, 3, 4, 6, 8), 4, "rows of w, so outputs a token, a block"),
            Parameter("k_unroll", (1, 2, 4), 1, "steps along K whose weights are loaded together"),
            Parameter("vector", (4, 8), 8, "elements of a load", changes_bits=True),
            Parameter("split_k", (1, 2), 1, "blocks of a cluster that share K", changes_bits=True),
            Parameter("static_k", (False, True), True, "K compiled in"),
            Parameter(
                "pdl", (False, True), True, "programmatic launch: weights are loaded before the predecessor ends"
            ),
        ),
        (
            Constraint(
                "vectors",
                "K of a block must be whole vectors: a load cannot straddle two blocks' shares",
                lambda p: workload["k"] % (kernel(p).vector * kernel(p).split_k) == 0,
            ),
            Constraint(
                "work",
                "every thread needs a step: a warp without one only adds to the reduction",
                lambda p: kernel(p).steps(workload["k"]) >= 1,
            ),
            Constraint(
                "unroll",
                "unrolling beyond the steps of a thread loads nothing more",
                lambda p: kernel(p).k_unroll <= max(1, kernel(p).steps(workload["k"])),
            ),
            Constraint(
                "wide",
                f"8-byte loads halve what a thread has in flight; they pay only where a block has at most {NARROW_K} "
                "elements of K",
                lambda p: kernel(p).vector == 8 or workload["k"] // kernel(p).split_k <= NARROW_K,
            ),
            Constraint(
                "registers",
                "sums and operands must fit the registers of a thread, or they spill to memory",
                lambda p: kernel(p).registers <= arch.registers_a_thread - 45,
            ),
            Constraint(
                "cluster",
                "split-K is a cluster, whose portable size is limited",
                lambda p: kernel(p).split_k <= arch.cluster_blocks,
            ),
        ),
    )


def _mma(workload: Workload, arch: Architecture) -> VariantSpace:
    """Defaults: at 3 to 16 tokens 22 % slower than each cell's best, never more than 87 %, over 78 recorded cells."""

    kernel = derived(lambda params: Mma.of(workload, params))

    return VariantSpace(
        "mma",
        (
            Parameter("warps", (2, 4, 8), 4, "warps a block", changes_bits=True),
            Parameter("rows", (16, 32, 64, 128), 16, "rows of w a block"),
            Parameter("rows_a_warp", (16, 32, 64), 16, "rows of w a warp; other warps divide K", changes_bits=True),
            Parameter("k_unroll", (1, 2, 4, 8), 2, "steps of 32 elements of K a stage", changes_bits=True),
            Parameter("stages", (2, 3, 4, 6, 8), 4, "asynchronous copies in flight, plus the one in use"),
            Parameter("split_k", (1, 2, 4, 8), 1, "blocks of a cluster that share K", changes_bits=True),
            Parameter(
                "pdl", (False, True), True, "programmatic launch: weights are copied before the predecessor ends"
            ),
        ),
        (
            Constraint(
                "tiling",
                "rows of a block must be whole warps of rows, and warps must divide into them",
                lambda p: kernel(p).rows % kernel(p).rows_a_warp == 0 and kernel(p).warps % kernel(p).row_warps == 0,
            ),
            Constraint(
                "k_tiles",
                "K must be whole stages: the copies have no tail",
                lambda p: workload["k"] % kernel(p).stage_k == 0,
            ),
            Constraint(
                "work",
                "every warp needs a stage of K: one without only adds to the reduction",
                lambda p: workload["k"] // kernel(p).stage_k >= kernel(p).k_warps * kernel(p).split_k,
            ),
            Constraint(
                "depth",
                "stages beyond a warp's share of K are never filled",
                lambda p: (
                    kernel(p).stages == 2
                    or (kernel(p).stages - 1) * kernel(p).k_warps * kernel(p).split_k
                    <= workload["k"] // kernel(p).stage_k
                ),
            ),
            Constraint(
                "shared_memory",
                "stages and partials must fit the shared memory of a block",
                lambda p: kernel(p).shared_bytes <= arch.shared_bytes_a_block,
            ),
            Constraint(
                "registers",
                "sums and fragments must fit the registers of a thread, or they spill to memory",
                lambda p: kernel(p).registers <= arch.registers_a_thread - 45,
            ),
            Constraint(
                "cluster",
                "split-K is a cluster, whose portable size is limited",
                lambda p: kernel(p).split_k <= arch.cluster_blocks,
            ),
        ),
    )
