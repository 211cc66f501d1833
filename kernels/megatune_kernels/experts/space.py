"""What can be tuned of the experts, and the one place that says which configs are legal and why."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from megatune_kernels.experts.geometry import BY_K
from megatune_kernels.experts.geometry import BY_UNITS
from megatune_kernels.experts.geometry import DOWN
from megatune_kernels.experts.geometry import EVICT_FIRST
from megatune_kernels.experts.geometry import GROUPED
from megatune_kernels.experts.geometry import L2
from megatune_kernels.experts.geometry import MXFP4
from megatune_kernels.experts.geometry import PER_ROUTE
from megatune_kernels.experts.geometry import TILE_K
from megatune_kernels.experts.geometry import UP
from megatune_kernels.experts.geometry import Stream
from megatune_kernels.operator import Workload
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import Architecture

MOST_PER_ROUTE = 16
"""Tokens beyond which nobody would read an expert's weights once for each of its routes."""
FEW = 2
SOME = 8
"""Tokens up to which there are few units, and up to which two launches cost more than blocks that wait."""
MOST_UNROLL = 4
MANY_TILES = 16
"""Tiles of K from which on there is work for four warps and more."""
ROW_TILES = (1, 2, 4)
LEAST_WARPS = 12
DEPTHS_MIB = (0, 8, 16, 32)
SHARED = ("group", "grid", "cache", "launches")
"""Parameters of both kernels on which rules depend."""
RESERVED = 1024
"""Bytes of an SM's shared memory that the driver takes for each block, same guide and table."""
REGISTERS = 65536
"""Of an SM, CUDA C++ programming guide, table of technical specifications."""
SMS = {"sm_90a": 132, "sm_100a": 148, "sm_103a": 148}
"""Of the GPUs that are known to have been measured; where there are more, some are idle."""


def experts_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a workload; a variant that has no legal config there is left out."""
    names = (PER_ROUTE, GROUPED) if workload.tokens <= MOST_PER_ROUTE else (GROUPED,)
    variants = [_variant(workload, name, arch) for name in names]
    return Space(tuple(variant for variant in variants if variant.has_configs))


def _start(tokens: int, variant: str, sms: int) -> dict[str, Value]:
    """Where a search begins: what was fastest of some dozens of configs on an H200, with Kimi K3's slices."""
    many: dict[str, Value] = {
        "group": 2,
        "launches": 2,
        "grid": sms,
        "up_split": BY_UNITS,
        "up_steals": True,
        "up_depth_mib": 0,
        "up_resident": 1,
        "up_warps": 16,
        "up_k_unroll": 4,
        "up_row_tiles": 1,
        "up_stages": 2,
        "down_resident": 1,
        "down_warps": 16,
        "down_row_tiles": 2,
        "down_stages": 2,
    }
    few: dict[str, Value] = many | {"up_split": BY_K, "up_steals": False, "up_warps": 7, "up_row_tiles": 2}
    if variant == PER_ROUTE:
        return few | {"grid": 4 * sms, "down_row_tiles": 1, "down_stages": 3}
    if tokens <= FEW:
        return few | {"grid": 2 * sms, "up_resident": 2, "up_k_unroll": 2, "up_stages": 3}
    if tokens <= SOME:
        return many | {"launches": 1, "up_steals": False}
    if tokens <= MOST_PER_ROUTE:
        return many | {"group": 4}
    group = 4 if tokens <= max(PADDED_TOKENS) // 2 else 8
    deep: dict[str, Value] = {
        "group": group,
        "up_depth_mib": 16,
        "up_warps": 14,
        "up_k_unroll": 2,
        "up_row_tiles": 2,
        "down_warps": 8,
    }
    return many | deep


def _nearest(values: Sequence[int], wanted: Value) -> int:
    return min(values, key=lambda value: abs(value - int(wanted)))


def _variant(workload: Workload, variant: str, arch: Architecture) -> VariantSpace:
    sms = SMS[arch.name]
    start = _start(workload.tokens, variant, sms)
    tiles = workload["width"] // TILE_K
    whole = tuple(size for size in range(1, min(tiles, MOST_UNROLL) + 1) if tiles % size == 0)[-2:]
    parts_of_k = workload["k"] // TILE_K
    few = parts_of_k < MANY_TILES
    warps = (1, 2, 4) if few else (4, 7, 8, 12, 14, 16)
    down_warps = (1, 2, 4) if few else (8, 12, 16)
    # Less than a kilobyte on its way would be little for a copy.
    k_unrolls = tuple(size for size in (1, 2, 4, 8) if parts_of_k % size == 0 and (workload.dtype != MXFP4 or size > 1))
    k_unrolls = k_unrolls or (1,)
    row_blocks = workload["k"] // TILE_ROWS
    whole_tiles = tuple(count for count in ROW_TILES if row_blocks % count == 0)
    # Rather more blocks than half of the SMs.
    down_row_tiles = tuple(count for count in whole_tiles if 2 * row_blocks >= sms * count) or whole_tiles[:1]

    def number(name: str, values: Sequence[int], meaning: str, *, changes_bits: bool = False) -> Parameter:
        return Parameter(name, tuple(values), _nearest(values, start[name]), meaning, changes_bits=changes_bits)

    # It decides which warp of ``down`` has a route, and so the order of a sum.
    meaning = "tokens of an expert that its weights serve at once"
    group = (number("group", (2, 4, 8, 16, 32), meaning, changes_bits=True),)
    parameters = (
        *(group if variant == GROUPED else ()),
        number("launches", (1, 2), "one, whose blocks wait for one another between w13 and w2, or two"),
        number("grid", (sms, 2 * sms, 4 * sms), "blocks that take units in turns"),
        Parameter("cache", (L2, EVICT_FIRST), L2, "what holds weights on their way"),
        Parameter(
            "up_split",
            (BY_K, BY_UNITS),
            start["up_split"],
            "what warps of a block divide of w13: K, or units",
            changes_bits=True,
        ),
        Parameter(
            "up_steals", (False, True), start["up_steals"], "warps take the next unit that is left, not every so many"
        ),
        number("up_depth_mib", DEPTHS_MIB, "MiB of w2 that are pulled into the L2 once routes are sorted"),
        number("up_resident", (1, 2), "blocks for which an SM has registers"),
        number("up_warps", warps, "warps a block", changes_bits=True),
        number("up_row_tiles", ROW_TILES, "tiles of 16 rows of w13 a unit"),
        number("up_k_unroll", k_unrolls, "tiles of 64 elements of K a stage", changes_bits=True),
        number("up_stages", (2, 3, 4), "stages of w13 in shared memory: copies in flight and the one in use"),
        number("down_resident", (1, 2), "blocks for which an SM has registers"),
        number("down_warps", down_warps, "warps a block, which take experts", changes_bits=True),
        number("down_row_tiles", down_row_tiles, "tiles of 16 rows of w2 a block"),
        Parameter("down_k_unroll", whole, whole[-1], "tiles of 64 elements of K a stage"),
        number("down_stages", (2, 3), "stages of w2 in shared memory"),
    )
    rules = [
        Constraint(
            "launches",
            "one launch has the same blocks for both matrices, all there at once",
            lambda p: (
                p["launches"] == 2
                or (
                    (p["up_warps"], p["up_resident"]) == (p["down_warps"], p["down_resident"])
                    and int(p["grid"]) <= int(p["up_resident"]) * sms
                )
            ),
            frozenset(("launches", "grid", "up_warps", "up_resident", "down_warps", "down_resident")),
        ),
        *_constraints(workload, variant, UP, parameters, arch),
        *_constraints(workload, variant, DOWN, parameters, arch),
    ]
    if variant == GROUPED:
        rules.append(
            Constraint(
                "group",
                "no expert has more tokens than there are",
                lambda p: int(p["group"]) < 2 * workload.tokens or p["group"] == 2,
                frozenset(("group",)),
            )
        )
    return VariantSpace(variant, parameters, tuple(rules))


def _constraints(
    workload: Workload, variant: str, role: str, parameters: Iterable[Parameter], arch: Architecture
) -> tuple[Constraint, ...]:
    """Rules of one of the two kernels. Whole spaces are products of both kernels' parameters, so that each kernel is
    judged once for all configs that have it."""
    looks_at = frozenset(p.name for p in parameters if p.name.startswith(role) or p.name in SHARED)
    rules = {name: (reason, holds) for name, reason, holds in _rules(arch)}
    judged: dict[tuple[tuple[str, Value], ...], frozenset[str]] = {}

    @derived
    def broken(params: Params) -> frozenset[str]:
        key = tuple((name, value) for name, value in params.items() if name.startswith(role) or name in SHARED)
        if key not in judged:
            stream = Stream.of(workload, variant, role, params)
            judged[key] = frozenset(name for name, (_, holds) in rules.items() if not holds(stream))
        return judged[key]

    def rule(name: str) -> Callable[[Params], bool]:
        return lambda params: name not in broken(params)

    return tuple(Constraint(f"{role}_{name}", reason, rule(name), looks_at) for name, (reason, _) in rules.items())


def _rules(arch: Architecture) -> tuple[tuple[str, str, Callable[[Stream], bool]], ...]:
    return (
        (
            "k_tiles",
            "K must be whole stages of every warp: the copies have no tail",
            lambda s: s.tiles_of_k % (s.k_unroll * s.k_warps) == 0,
        ),
        (
            "rows",
            "rows must be whole tiles of every warp: there are no rows to spare",
            lambda s: s.rows_out % s.outputs == 0,
        ),
        (
            "blocks",
            "a block of w2 has the same rows of all experts, and no SM keeps room for a second block it never gets",
            lambda s: (s.role == UP or s.row_blocks <= s.grid) and s.resident <= -(-s.grid // SMS[arch.name]),
        ),
        (
            "warps",
            f"{LEAST_WARPS} warps an SM, where there is work for them, are the least that keep the memory busy",
            lambda s: s.role == DOWN or s.tiles_of_k < MANY_TILES or s.warps * s.grid >= LEAST_WARPS * SMS[arch.name],
        ),
        (
            "depth",
            "what some warps pull delays them: others have to take their units",
            lambda s: s.steals or not s.depth_mib,
        ),
        (
            "steals",
            "who asks for the next unit while it has one has units of its own, no shorter than what is on its way",
            lambda s: not s.steals or (s.k_warps == 1 and s.steps >= s.stages),
        ),
        (
            "shared_memory",
            "stages, partial sums and the routing must fit the shared memory of a block",
            lambda s: s.shared_bytes <= arch.shared_bytes_a_block,
        ),
        (
            "two_blocks",
            "two blocks have to fit the shared memory of an SM that is to have two",
            lambda s: s.resident == 1 or 2 * (s.shared_bytes + RESERVED) <= arch.shared_bytes_a_block + RESERVED,
        ),
        (
            "registers",
            "sums and fragments must fit the registers of a thread, or they spill to memory",
            lambda s: s.registers <= min(arch.registers_a_thread, REGISTERS // (s.resident * s.threads)),
        ),
    )
