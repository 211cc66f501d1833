"""What can be tuned of a reduction, and the one place that says which configs are legal and why."""

from __future__ import annotations

import math

from megatune_kernels.operator import Workload
from megatune_kernels.reduction.geometry import BF16_BYTES
from megatune_kernels.reduction.geometry import FLAG
from megatune_kernels.reduction.geometry import SECTOR_BYTES
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.reduction.geometry import FullFanout
from megatune_kernels.reduction.geometry import TwoStage
from megatune_kernels.space import Constraint
from megatune_kernels.space import Parameter
from megatune_kernels.space import Params
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.space import derived
from megatune_kernels.target import Architecture

VARIANTS: dict[str, type[FullFanout] | type[TwoStage]] = {"full_fanout": FullFanout, "two_stage": TwoStage}
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 132, 256)
LESS_BLOCKS: dict[Value, int] = dict(zip(BLOCKS, (0, *BLOCKS), strict=False))
THREADS = (64, 128, 256, 512)
VECTOR_BYTES = (8, 16)
TILE_TOKENS = (1, 2, 4, 8, 16)
LEAST_COLUMNS = 128
SM_REGISTERS = 1 << 16
FEW_VECTORS = 4
MOST_VECTORS = 16
MOST_WORKSPACE_BYTES = 256 << 20
START_THREADS = (128, 256, 512)
START_BLOCKS = 64
MOST_START_BLOCKS = 128


def tiles_of(workload: Workload, variant: str, params: Params) -> FullFanout | TwoStage:
    """What the config's kernel is specialised for."""
    return VARIANTS[variant].of(workload, params)


def reduction_space(workload: Workload, arch: Architecture) -> Space:
    """The space of a workload; a variant that has no legal config there is left out."""
    width, world = workload["width"], workload.world
    variants = [_variant(workload, "full_fanout", width, arch)]
    if width % world == 0:
        variants.append(_variant(workload, "two_stage", width // world, arch))
    return Space(tuple(variant for variant in variants if variant.has_configs))


def _columns(extent: int) -> tuple[int, ...]:
    """Widths of a tile: the parts of the columns that are equal and whole sectors, and the whole."""
    step = SECTOR_BYTES // BF16_BYTES
    parts = (part for part in range(step, extent, step) if extent % part == 0 and part >= LEAST_COLUMNS)
    return (*parts, extent)


def _start(workload: Workload, extent: int) -> dict[str, int]:
    """Where a search begins: few threads a block until 64 blocks are busy, then more threads, then more blocks.

    That is how the best of a sweep over blocks and threads grew with the tokens, on two H200 at width 7168.
    """
    vectors = workload.tokens * extent * BF16_BYTES // max(VECTOR_BYTES)
    threads = next((t for t in START_THREADS if vectors <= START_BLOCKS * t), max(START_THREADS))
    elements = threads * max(VECTOR_BYTES) // BF16_BYTES
    columns = max((c for c in _columns(extent) if c <= elements), default=min(_columns(extent)))
    rows = max(t for t in TILE_TOKENS if t == 1 or (columns == extent and t * extent <= elements))
    tiles = -(-workload.tokens // rows) * (extent // columns)
    blocks = next(b for b in BLOCKS if b >= tiles or b == MOST_START_BLOCKS)
    ahead = 2 if tiles > 2 * blocks else 1
    return {"threads": threads, "columns": columns, "tile_tokens": rows, "blocks": blocks, "ahead": ahead}


def _variant(workload: Workload, variant: str, extent: int, arch: Architecture) -> VariantSpace:
    start = _start(workload, extent)
    tiles = derived(lambda params: tiles_of(workload, variant, params))

    return VariantSpace(
        variant,
        (
            Parameter("blocks", BLOCKS, start["blocks"], "blocks, which share the tiles among them"),
            Parameter("threads", THREADS, start["threads"], "threads a block"),
            Parameter("vector", VECTOR_BYTES, 16, "bytes that a thread moves with one access"),
            Parameter("columns", _columns(extent), start["columns"], "columns of a tile"),
            Parameter("tile_tokens", TILE_TOKENS, start["tile_tokens"], "tokens of a tile"),
            Parameter("ahead", (1, 2, 4), start["ahead"], "tiles that a block sends before it waits for the first"),
            Parameter("parities", (2, 3), 2, "launches whose mailboxes are apart"),
            Parameter("signal", (SENTINEL, FLAG), SENTINEL, "what says that data has come: the data, or a tile's flag"),
            Parameter("backoff", (0, 20), 0, "ns that a thread sleeps before it looks again"),
            Parameter("pdl", (False, True), True, "programmatic launch: blocks start while the predecessor ends"),
        ),
        (
            Constraint(
                "rows",
                "several tokens make a tile only where it has their whole rows: a part of each would be as many bytes "
                "in more pieces",
                lambda p: p["tile_tokens"] == 1 or p["columns"] == extent,
            ),
            Constraint(
                "tokens",
                "rows of a tile beyond the tokens stay empty",
                lambda p: tiles(p).tile_tokens <= workload.tokens,
            ),
            Constraint(
                "alignment",
                "rows of a tile must start on a whole vector, in the partial as in the mailbox: an access that is not "
                "aligned to its size faults",
                lambda p: math.gcd(workload["width"], extent, tiles(p).columns) * BF16_BYTES % tiles(p).vector == 0,
            ),
            Constraint(
                "threads",
                "more than a third of the threads need a vector: a warp without one only delays the launch",
                lambda p: 3 * tiles(p).tile_vectors > tiles(p).threads,
            ),
            Constraint(
                "blocks",
                "there is no block without a tile: the least number that gives each tile one stands for all above it",
                lambda p: LESS_BLOCKS[p["blocks"]] < tiles(p).tiles,
            ),
            Constraint(
                "narrow",
                "8-byte accesses take twice as many; they pay only where they give a thread something to do that would "
                "have nothing",
                lambda p: p["vector"] == max(VECTOR_BYTES) or tiles(p).rounds * tiles(p).thread_vectors == 1,
            ),
            Constraint(
                "work",
                f"a thread with more than {FEW_VECTORS} vectors takes them in turns while multiprocessors idle, unless "
                f"{START_BLOCKS} blocks are busy; with more than {MOST_VECTORS} it cannot fill a link",
                lambda p: (
                    tiles(p).rounds * tiles(p).thread_vectors
                    <= (MOST_VECTORS if tiles(p).grid >= START_BLOCKS else FEW_VECTORS)
                ),
            ),
            Constraint(
                "ahead",
                "beyond the tiles of a block there is nothing to send",
                lambda p: tiles(p).ahead == 1 or tiles(p).ahead < tiles(p).rounds,
            ),
            Constraint(
                "registers",
                "what a thread sends and receives of a tile must fit its registers, or it spills to memory",
                lambda p: tiles(p).registers <= min(arch.registers_a_thread, SM_REGISTERS // tiles(p).threads),
            ),
            Constraint(
                "workspace",
                f"every rank holds the workspace beside the model's weights: at most {MOST_WORKSPACE_BYTES >> 20} MiB",
                lambda p: tiles(p).workspace.bytes <= MOST_WORKSPACE_BYTES,
            ),
        ),
    )
