"""The arithmetic of a config: formats of weights, what a warp holds, and how kernels are launched. Imports no DSL.

Two kernels make up the experts of a layer. ``up`` multiplies w13 [experts, 2 width, k] with the tokens of each expert
and applies the activation; ``down`` multiplies w2 [experts, k, width] with what came of that, and adds up the experts
of each token. Both are the same stream: the routes of an expert are cut into groups of at most ``group`` tokens, rows
of its weights into blocks, and units of both are taken in turns, asynchronous copies running ahead from one unit into
the next. In ``up`` the warps of a block divide K of a unit, or each has units of its own. In ``down`` a block has the
same rows of all experts, and its warps take the groups: so each block adds up its rows of all tokens by itself, in one
order.

A warp walks its share of K in stages of ``k_unroll`` tiles of 64 elements. A tile is 16 rows of them; in ``up`` 8 of
the gate and the 8 of the up projection that belong to them, so that a lane holds both halves of an activation. Lane c
of a quad has elements 16c to 16c+15 of two rows, in four m16n8k16 instructions.

Weights are packed once, when a model is loaded: tiles [experts, tiles of rows, tiles of K], each as pieces of 16 bytes
of its 32 lanes, so that a stage of a tile of rows is one run of memory, a copy is 512 neighbouring bytes, and what a
lane multiplies is its own pieces. A lane's pieces are those of its upper row, then those of its lower one; in MXFP4 8
bytes of each are one piece. Scales of MXFP4 are in tiles as well: for each row of the upper 8 and each half of the
tile's K, the byte of that row and the one of the row 8 further down.

``Stream`` is also what a kernel is specialised for: two workloads that give equal values share an artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.projection.geometry import BF16_BYTES
from megatune_kernels.projection.geometry import COPY_BYTES
from megatune_kernels.projection.geometry import FP32_BYTES
from megatune_kernels.projection.geometry import PADDED_TOKENS
from megatune_kernels.projection.geometry import PITCH_PAD
from megatune_kernels.projection.geometry import TILE_ROWS
from megatune_kernels.projection.geometry import TILE_TOKENS
from megatune_kernels.projection.geometry import WARP
from megatune_kernels.space import Params

PER_ROUTE = "per_route"
GROUPED = "grouped"
UP = "up"
DOWN = "down"
BOTH = "both"
"""In one launch."""
BY_K = "k"
BY_UNITS = "units"
"""What the warps of a block of ``up`` divide among them."""
TILE_K = 64
"""Elements of K that a quad of lanes covers: 16 of each row a lane, four m16n8k16 instructions."""
MXFP4 = "mxfp4"
BF16 = "bf16"
FP8 = "fp8"
FORMATS = (MXFP4, FP8, BF16)
ROW_BYTES = {MXFP4: TILE_K // 2, FP8: TILE_K, BF16: TILE_K * BF16_BYTES}
"""Bytes of a row's weights in a tile."""
SCALE_GROUP = 32
"""Elements along K that share a scale, one byte, in MXFP4."""
PAIR_BITS = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (13, 14, 10, 11))
"""Of MXFP4, where a word of 8 neighbouring elements has the bits of each pair: mantissa, exponent and sign of the even
element; those of the odd one are 16 bits higher."""
SCALE_TILE_BYTES = TILE_ROWS * (TILE_K // SCALE_GROUP)
"""Of a tile's scales in MXFP4, one byte each."""
SCALE_BLOCK = 128
"""Rows, and elements along K, that share a scale in FP32, in FP8."""
L2 = "l2"
EVICT_FIRST = "evict_first"
"""Copies of weights past the L1, as they are or with the hint that the L2 need not keep them."""
LINE_BYTES = TILE_K * BF16_BYTES
"""Of a row of BF16 in a tile."""
GROUP_BYTES = 8
"""Of an entry of the table of groups: an expert, and where its routes are among the sorted and how many."""
FAULT_WORDS = 5
"""The word of faults; of one launch the counts of blocks that came to its middle and that went on; and of warps that
take what units are left, the counts of units taken and of blocks that are through."""
ARRIVALS_WORD = 1
TAKEN_WORD = 3
MIB = 1 << 20
PULL_BYTES = 8192
"""Of one request for the L2."""
WORKSPACE_ALIGNMENT = 256
COUNT_BITS = 8
SIDE_REGISTERS = 40
"""What a thread needs at least beside sums and fragments."""


def power_of_two_in(count: int, most: int) -> int:
    """The largest power of two that divides ``count``, at most ``most``."""
    return min(count & -count, most)


@dataclass(frozen=True)
class Copies:
    """How a warp's lanes are dealt the 16-byte pieces of a stage of some tokens: a copy is one instruction.

    A lane's piece and row in copy (line, j) are its own plus a constant, so that addresses are, too.
    """

    rows: int
    pieces: int
    """Of a row."""
    lanes_a_row: int

    @property
    def rows_a_copy(self) -> int:
        return WARP // self.lanes_a_row

    @property
    def lines(self) -> int:
        return self.pieces // self.lanes_a_row

    @property
    def copies_a_line(self) -> int:
        return -(-self.rows // self.rows_a_copy)


@dataclass(frozen=True)
class Stream:
    """One kernel. The warps of a block divide K (``k_warps``), or each has units of its own (``unit_warps``)."""

    role: str
    weights: str
    """Format."""
    experts: int
    top: int
    k: int
    """Elements of a row of weights."""
    rows_out: int
    """Outputs of a route: the width in ``up``, the latent in ``down``."""
    beta: int
    linear_beta: int
    """Of SiTU; 0 in SiLU."""
    padded_tokens: int
    sorts: bool
    """Whether routes of one expert are grouped; else each is a group."""
    group: int
    k_warps: int
    unit_warps: int
    row_tiles: int
    """Tiles of 16 rows of a warp."""
    k_unroll: int
    stages: int
    resident: int
    """Blocks for which an SM has registers."""
    grid: int
    """Blocks, which take units in turns."""
    cache: str
    """What holds weights on their way."""
    steals: bool = False
    """Whether warps of ``up`` take the next unit that is left, once they have had their first."""
    depth_mib: int = 0
    """MiB of the next matrix that ``up`` pulls into the L2 once routes are sorted."""

    @staticmethod
    def of(workload: Workload, variant: str, role: str, params: Params) -> Stream:
        values: dict[str, Any] = {
            name.removeprefix(f"{role}_"): value for name, value in params.items() if name.startswith(role)
        }
        up = role == UP
        warps = int(values.pop("warps"))
        k_warps = warps if values.pop("split", BY_UNITS) == BY_K else 1
        rows_out = workload["width"] if up else workload["k"]
        # By itself, ``down`` has a block for all rows, and no others.
        alone = rows_out // (int(values["row_tiles"]) * TILE_ROWS)
        return Stream(
            role=role,
            weights=workload.dtype,
            experts=workload["experts"],
            top=workload["top"],
            k=workload["k"] if up else workload["width"],
            rows_out=rows_out,
            beta=dict(workload.dims).get("beta", 0) if up else 0,
            linear_beta=dict(workload.dims).get("linear_beta", 0) if up else 0,
            padded_tokens=next(size for size in PADDED_TOKENS if size >= workload.tokens),
            sorts=variant == GROUPED,
            group=int(params.get("group", 1)),
            grid=int(params["grid"]) if up or params.get("launches") == 1 else alone,
            cache=str(params["cache"]),
            k_warps=k_warps,
            unit_warps=warps // k_warps,
            **values,
        )

    # Warps and the share of each.

    @property
    def warps(self) -> int:
        return self.k_warps * self.unit_warps

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def rows(self) -> int:
        """Rows of weights of a warp."""
        return self.row_tiles * TILE_ROWS

    @property
    def outputs(self) -> int:
        """Outputs of a warp for each route: in ``up``, two rows make one."""
        return self.rows // 2 if self.role == UP else self.rows

    @property
    def row_blocks(self) -> int:
        return self.rows_out // self.outputs

    @property
    def tiles_of_k(self) -> int:
        return self.k // TILE_K

    @property
    def stage_k(self) -> int:
        return self.k_unroll * TILE_K

    @property
    def steps(self) -> int:
        """Stages of a warp in a unit."""
        return self.tiles_of_k // (self.k_unroll * self.k_warps)

    @property
    def token_tiles(self) -> int:
        return -(-self.group // TILE_TOKENS)

    @property
    def columns(self) -> int:
        """Tokens of a token tile that have room; the multiplication repeats them where there are fewer than 8."""
        return min(self.group, TILE_TOKENS)

    @property
    def most_routes(self) -> int:
        return self.padded_tokens * self.top

    @property
    def most_groups(self) -> int:
        return self.most_routes

    # Memory.

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile of weights."""
        return TILE_ROWS * ROW_BYTES[self.weights]

    @property
    def pieces(self) -> int:
        """Of a lane in a tile, 16 bytes each."""
        return self.tile_bytes // (WARP * COPY_BYTES)

    @property
    def row_tile_bytes(self) -> int:
        """Bytes of 16 rows of weights."""
        return self.tiles_of_k * self.tile_bytes

    @property
    def scale_row_tile_bytes(self) -> int:
        return self.tiles_of_k * SCALE_TILE_BYTES if self.weights == MXFP4 else 0

    @property
    def rows_an_expert(self) -> int:
        return self.rows_out * (2 if self.role == UP else 1)

    @property
    def row_tiles_an_expert(self) -> int:
        return self.rows_an_expert // TILE_ROWS

    @property
    def token_copies(self) -> Copies:
        """Of activations. As many lanes a row as there are pieces: mostly there is one token."""
        pieces = self.stage_k * BF16_BYTES // COPY_BYTES
        return Copies(self.group, pieces, power_of_two_in(pieces, WARP))

    @property
    def scale_pieces(self) -> int:
        """Of the scales of a tile of rows in a stage, 16 bytes each."""
        return self.k_unroll * SCALE_TILE_BYTES // COPY_BYTES if self.weights == MXFP4 else 0

    @property
    def scale_halves(self) -> int:
        """Blocks of rows that a warp's rows are in, in FP8: in ``up``, one of the gate and one of the up projection."""
        return 2 if self.role == UP else 1

    # What ``down`` reads of an expert, which ``up`` can pull into the L2.

    @property
    def next_bytes(self) -> int:
        return self.k * (self.rows_out // TILE_K) * ROW_BYTES[self.weights]

    @property
    def next_scale_bytes(self) -> int:
        """Of scales, which only in MXFP4 are worth it."""
        return self.k * (self.rows_out // SCALE_GROUP) if self.weights == MXFP4 else 0

    @property
    def pulls(self) -> int:
        """Requests for one expert."""
        return -(-self.next_bytes // PULL_BYTES) + -(-self.next_scale_bytes // PULL_BYTES)

    # Shared memory.

    @property
    def token_tile_bytes(self) -> int:
        return self.token_tiles * 2 * plane_pitch(self.columns)

    @property
    def weight_stage_bytes(self) -> int:
        return self.row_tiles * self.k_unroll * self.tile_bytes

    @property
    def scale_stage_bytes(self) -> int:
        if self.weights == FP8:
            return -(-self.k_unroll * self.scale_halves * FP32_BYTES // COPY_BYTES) * COPY_BYTES
        return self.row_tiles * self.scale_pieces * COPY_BYTES

    @property
    def stage_bytes(self) -> int:
        """A warp's weights, then its scales, then the activations."""
        return self.weight_stage_bytes + self.scale_stage_bytes + self.k_unroll * self.token_tile_bytes

    def weight_place(self, row_tile: int, tile: int, piece: int) -> int:
        """Where in a stage the pieces of all lanes lie, one behind the other."""
        return ((row_tile * self.k_unroll + tile) * self.pieces + piece) * WARP * COPY_BYTES

    def scale_place(self, row_tile: int, tile: int) -> int:
        """Where behind the weights of a stage a tile's scales lie, in MXFP4."""
        return (row_tile * self.k_unroll + tile) * SCALE_TILE_BYTES

    def token_place(self, column: Any, piece: Any) -> Any:
        """Where behind weights and scales 16 bytes of a token lie."""
        return row_place(column, self.columns) + piece_place(piece, self.token_tile_bytes, self.columns)

    @property
    def pitch(self) -> int:
        """FP32 of a token's sums of a warp's rows; in ``down`` the tokens of a quad of lanes are any."""
        return self.rows + (PITCH_PAD if self.role == UP else TILE_TOKENS)

    @property
    def partial_bytes(self) -> int:
        """Sums of all warps: of one unit, each for its share of K, those of the next unit going elsewhere; or of all
        tokens, each for its groups."""
        if self.role == DOWN:
            return self.warps * self.padded_tokens * self.pitch * FP32_BYTES
        return 2 * self.unit_bytes

    @property
    def unit_bytes(self) -> int:
        """Sums of a unit of all warps, where they divide K."""
        return self.warps * self.group * self.pitch * FP32_BYTES if self.k_warps > 1 else 0

    @property
    def mask_words(self) -> int:
        """Words of an expert's set of tokens."""
        return -(-self.padded_tokens // 32)

    @property
    def table_bytes(self) -> int:
        """Groups, the routes in the order of groups and their shares, and a word for each warp."""
        return self.most_groups * GROUP_BYTES + 2 * self.most_routes * FP32_BYTES + WARP * FP32_BYTES

    @property
    def order_at(self) -> int:
        return self.most_groups * GROUP_BYTES

    @property
    def shares_at(self) -> int:
        """How far behind a route its share is."""
        return self.most_routes * FP32_BYTES

    @property
    def sorting_bytes(self) -> int:
        """What sorting needs before there are stages in its place."""
        return self.experts * (self.mask_words + 1) * FP32_BYTES if self.sorts else 0

    @property
    def stages_at(self) -> int:
        return -(-(self.table_bytes + self.partial_bytes) // 128) * 128

    @property
    def shared_bytes(self) -> int:
        return self.stages_at + max(self.warps * self.stages * self.stage_bytes, self.sorting_bytes)

    @property
    def registers(self) -> int:
        fragments = self.row_tiles * (16 if self.weights == BF16 else 12) + 8
        return self.row_tiles * self.token_tiles * 4 + fragments + SIDE_REGISTERS

    def groups(self, distinct: int, routes: int) -> int:
        """At most so many groups, of so many routes to so many experts."""
        return min(routes, distinct + routes // self.group) if self.sorts else routes

    def blocks(self, tokens: int) -> int:
        """As many as there are blocks of rows in ``down``; in ``up`` there are units for at most so many, whatever the
        routing."""
        if self.role == DOWN:
            return self.row_blocks
        routes = tokens * self.top
        units = self.groups(min(routes, self.experts), routes) * self.row_blocks
        return min(-(-units // self.unit_warps), self.grid)

    def launch(self, tokens: int) -> Launch:
        return Launch(
            grid=(self.blocks(tokens), 1, 1),
            block=(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            programmatic=True,
            scalars=(tokens,),
        )


def launch_both(up: Stream, down: Stream, tokens: int) -> Launch:
    """Of both in one launch, whose blocks wait for one another."""
    return Launch(
        grid=(max(up.blocks(tokens), down.blocks(tokens)), 1, 1),
        block=(up.threads, 1, 1),
        shared_bytes=max(up.shared_bytes, down.shared_bytes),
        programmatic=True,
        scalars=(tokens,),
        resident=True,
    )


def plane_pitch(rows: int) -> int:
    """Bytes from every even 16 of a tile of BF16 rows to every odd 16, which a warp reads after them.

    Half a line more than there are, so that a line is written without conflicts, as it is read.
    """
    return rows * LINE_BYTES // 2 + (LINE_BYTES // 2 if rows > 1 else 0)


def piece_place(piece: Any, tile_bytes: int, rows: int) -> Any:
    """The part of a place among BF16 that depends on which 16 bytes of a row it is."""
    return piece // 8 * tile_bytes + piece % 2 * plane_pitch(rows) + piece % 8 // 2 * COPY_BYTES


def row_place(row: Any, rows: int) -> Any:
    """The part that depends on the row, of tiles of so many rows."""
    return row // rows * (2 * plane_pitch(rows)) + row % rows * (LINE_BYTES // 2)


def sorted_routes(
    ids: Sequence[Sequence[int]], experts: int, group: int
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """What every block of ``up`` and ``down`` computes first, in the same way: the routes in the order of their
    experts, those of one expert in the order of tokens, cut into groups.

    Routes to no expert are left out.

    :returns: groups as (expert, first place, count), and the routes by place.
    """
    sets = [0] * experts
    for token, each in enumerate(ids):
        for expert in each:
            if 0 <= expert < experts:
                sets[expert] |= 1 << token
    starts: list[int] = []
    groups: list[tuple[int, int, int]] = []
    place = 0
    for expert, tokens in enumerate(sets):
        starts.append(place)
        count = tokens.bit_count()
        groups += [(expert, place + first, min(group, count - first)) for first in range(0, count, group)]
        place += count
    order = [-1] * place
    for token, each in enumerate(ids):
        for slot, expert in enumerate(each):
            if 0 <= expert < experts:
                before = (sets[expert] & ((1 << token) - 1)).bit_count()
                order[starts[expert] + before] = token * len(each) + slot
    return groups, order


def expert_bytes(workload: Workload) -> int:
    """Bytes of one expert's weights and scales."""
    elements = 3 * workload["width"] * workload["k"]
    if workload.dtype == BF16:
        return BF16_BYTES * elements
    if workload.dtype == FP8:
        return elements + elements // SCALE_BLOCK**2 * FP32_BYTES
    return elements // 2 + elements // SCALE_GROUP


def workspace_bytes(workload: Workload) -> dict[str, int]:
    """What the kernels need beside operands, by name, in the order in which it lies: hidden [routes, width] in BF16 and
    faults in words, each aligned. Faults are 0 at first."""
    routes = workload.tokens * workload["top"]
    sizes = {
        "hidden": routes * workload["width"] * BF16_BYTES,
        "faults": FAULT_WORDS * FP32_BYTES,
    }
    return {name: -(-size // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT for name, size in sizes.items()}
