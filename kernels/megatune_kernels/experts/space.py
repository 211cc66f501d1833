"""What can be tuned of the experts, and the one place that says which configs are legal and why."""

from __future__ import annotations

from collections.abc import Callable

from megatune_kernels.experts.geometry import CACHES
from megatune_kernels.experts.geometry import DOWN
from megatune_kernels.experts.geometry import GROUPED
from megatune_kernels.experts.geometry import L2
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import PER_ROUTE
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import Stream
from megatune_kernels.operator import Workload
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import Architecture

MOST_UNROLL = 8
GRIDS = (0, 132, 264)
"""Once and twice the SMs of an H200; on a GPU with more of them some are idle, with 0 never."""


def experts_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a workload; a variant that has no legal config there is left out."""
    variants = [_variant(workload, name, arch) for name in (PER_ROUTE, GROUPED)]
    return Space(tuple(variant for variant in variants if variant.has_configs))


def _variant(workload: Workload, variant: str, arch: Architecture) -> VariantSpace:
    def stream(role: str) -> Callable[[Params], Stream]:
        return derived(lambda params: Stream.of(workload, variant, role, params))

    tiles = workload["width"] // TILE_K
    whole = [tiles // parts for parts in range(1, tiles + 1) if tiles % parts == 0]
    # Of MXFP4, scales of a stage are copied 4 bytes at a time, or those of whole rows together.
    usable = [size for size in whole if workload.dtype != MXFP4 or size == tiles or size % 2 == 0]
    whole = tuple(sorted(size for size in usable if size <= MOST_UNROLL))
    up, down = stream(UP), stream(DOWN)
    group = (Parameter("group", (2, 4, 8, 16, 32), 8, "tokens of an expert that its weights serve at once"),)
    return VariantSpace(
        variant,
        (
            *(group if variant == GROUPED else ()),
            Parameter("up_k_warps", (2, 4, 7, 8, 14), 7, "warps that divide K of w13", changes_bits=True),
            Parameter("up_row_tiles", (1, 2), 2, "tiles of 16 rows of w13 a block"),
            Parameter("up_k_unroll", (1, 2, 4, 8), 4, "tiles of 64 elements of K a stage", changes_bits=True),
            Parameter("up_stages", (2, 3, 4), 3, "stages of w13 in shared memory: copies in flight and the one in use"),
            Parameter("down_row_warps", (4, 8), 8, "warps of a block, with rows of w2 of their own"),
            Parameter("down_row_tiles", (1, 2), 2, "tiles of 16 rows of w2 a warp"),
            Parameter("down_k_unroll", whole[-2:], whole[-1], "tiles of 64 elements of K a stage"),
            Parameter("down_stages", (2, 3, 4), 3, "stages of w2 in shared memory"),
            Parameter("grid", GRIDS, 132, "blocks that take rows in turns; 0: as many as there are rows to take"),
            Parameter("cache", CACHES, L2, "what holds weights on their way"),
            Parameter("pdl", (False, True), True, "programmatic launches: w2 is copied before all of w13 is through"),
        ),
        (
            *_constraints(UP, up, arch),
            *_constraints(DOWN, down, arch),
            *(
                (
                    Constraint(
                        "group",
                        "no expert has more tokens than there are",
                        lambda p: int(p["group"]) < 2 * workload.tokens or p["group"] == 2,
                    ),
                )
                if variant == GROUPED
                else ()
            ),
        ),
    )


def _constraints(role: str, stream: Callable[[Params], Stream], arch: Architecture) -> tuple[Constraint, ...]:
    return (
        Constraint(
            f"{role}_k_tiles",
            "K must be whole stages of every warp: the copies have no tail",
            lambda p: (
                stream(p).k % (stream(p).stage_k * stream(p).k_warps) == 0
                and stream(p).tiles_of_k >= stream(p).k_unroll * stream(p).k_warps
            ),
        ),
        Constraint(
            f"{role}_rows",
            "rows must be whole tiles of every warp: there are no rows to spare",
            lambda p: stream(p).rows_out % (stream(p).outputs * stream(p).row_warps) == 0,
        ),
        Constraint(
            f"{role}_scales",
            "scales are copied 4 bytes at a time or more",
            lambda p: stream(p).weights != MXFP4 or stream(p).scale_piece >= 4,
        ),
        Constraint(
            f"{role}_warps",
            "a block has at most 16 warps, whose registers an SM holds",
            lambda p: stream(p).warps <= 16,
        ),
        Constraint(
            f"{role}_shared_memory",
            "stages, partial sums and the routing must fit the shared memory of a block",
            lambda p: stream(p).shared_bytes <= arch.shared_bytes_a_block,
        ),
        Constraint(
            f"{role}_registers",
            "sums and fragments must fit the registers of a thread, or they spill to memory",
            lambda p: stream(p).registers <= min(arch.registers_a_thread, 65536 // (stream(p).threads)),
        ),
    )
