"""What can be tuned of a router front, and the one place that says which configs are legal and why."""

from __future__ import annotations

from megatune_kernels.operator import Workload
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.router.geometry import QUAD
from megatune_kernels.router.geometry import REDUNDANT
from megatune_kernels.router.geometry import SPLIT
from megatune_kernels.router.geometry import Front
from megatune_kernels.router.geometry import least_on_its_way
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import Architecture

SPARE_REGISTERS = 24
MOST_ROUNDS = 2


def front_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a workload; a variant that has no legal config there is left out."""
    variants = [_variant(workload, REDUNDANT, arch)]
    share, rest = divmod(workload["experts"], workload.world)
    if workload.world > 1 and not rest and share % QUAD == 0:
        variants.append(_variant(workload, SPLIT, arch))
    return Space(tuple(variant for variant in variants if variant.has_configs))


def _variant(workload: Workload, variant: str, arch: Architecture) -> VariantSpace:
    kernel = derived(lambda params: Front.of(workload, variant, params))
    return VariantSpace(
        variant,
        (
            Parameter("warps", (2, 4, 8), 4, "warps a block, which divide K", changes_bits=True),
            Parameter("rows", (16, 32, 48, 64), 16, "rows of the packed matrix a block"),
            Parameter("k_unroll", (1, 2, 4, 8), 2, "steps of 32 elements of K a stage", changes_bits=True),
            Parameter("stages", (2, 3, 4, 6, 8), 4, "asynchronous copies in flight, plus the one in use"),
            Parameter("split_k", (1, 2, 3, 4), 4, "blocks of a cluster that share K", changes_bits=True),
            Parameter("finishers", (1, 2, 4, 8, 16, 32), 1, "blocks that choose experts, a token to a warp at a time"),
            Parameter(
                "pdl", (False, True), True, "programmatic launch: weights are copied before the predecessor ends"
            ),
        ),
        (
            Constraint(
                "k_tiles",
                "K must be whole stages: the copies have no tail",
                lambda p: workload["k"] % kernel(p).tiles.stage_k == 0,
            ),
            Constraint(
                "work",
                "every warp needs a stage of K: one without only adds to the sums",
                lambda p: workload["k"] // kernel(p).tiles.stage_k >= kernel(p).warps * kernel(p).split_k,
            ),
            Constraint(
                "depth",
                "stages beyond a warp's share of K are never filled",
                lambda p: (
                    kernel(p).stages == 2
                    or (kernel(p).stages - 1) * kernel(p).warps * kernel(p).split_k
                    <= workload["k"] // kernel(p).tiles.stage_k
                ),
            ),
            Constraint(
                "finishers",
                "a block whose warps have no token to finish is none",
                lambda p: (kernel(p).finishers - 1) * kernel(p).warps < workload.tokens,
            ),
            Constraint(
                "rounds",
                "tokens that a warp finishes one after the other add up: two at most",
                lambda p: workload.tokens <= MOST_ROUNDS * kernel(p).finishers * kernel(p).warps,
            ),
            Constraint(
                "blocks",
                "no more blocks can finish than there are",
                lambda p: kernel(p).finishers <= kernel(p).row_blocks * kernel(p).split_k,
            ),
            Constraint(
                "shared_memory",
                "stages, partials and candidates must fit the shared memory of a block",
                lambda p: kernel(p).shared_bytes <= arch.shared_bytes_a_block,
            ),
            Constraint(
                "registers",
                "sums, fragments and a token's scores must fit the registers of a thread, or they spill to memory",
                lambda p: (
                    max(kernel(p).registers, kernel(p).experts * 3 // WARP + SPARE_REGISTERS) <= arch.registers_a_thread
                ),
            ),
            Constraint(
                "idle",
                "with blocks on less than half of the multiprocessors, the others' share of the bandwidth is lost",
                # Ranks of a group may share a GPU, which emulates them.
                lambda p: 2 * kernel(p).row_blocks * kernel(p).split_k * workload.world >= arch.sms,
            ),
            Constraint(
                "on_its_way",
                "with less than so much of the weights on its way at once, the memory waits to be asked",
                lambda p: kernel(p).bytes_on_their_way * workload.world >= least_on_its_way(kernel(p)),
            ),
            Constraint(
                "residency",
                "blocks wait for one another, so the GPU must hold all of them at once",
                lambda p: kernel(p).fits(arch),
            ),
            Constraint(
                "cluster",
                "split-K is a cluster, whose portable size is limited",
                lambda p: kernel(p).split_k <= arch.cluster_blocks,
            ),
        ),
    )
