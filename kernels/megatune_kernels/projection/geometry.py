"""The arithmetic of a config: what a block holds and how it is launched. Imports no DSL.

``Simt`` and ``Mma`` are also what the kernels are specialised for: two workloads that give equal values share an
artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.space import Params

WARP = 32
BF16_BYTES = 2
FP32_BYTES = 4
COPY_BYTES = 16
"""Bytes of an asynchronous copy, and of the widest load, of one thread."""
UNROLLED_STEPS = 16
"""With a static K, loops of at most this many steps are unrolled whole; longer ones would leave the instruction
cache."""
STREAM_BYTES = WARP * COPY_BYTES
"""Bytes that a warp reads with one instruction: its fragments of 8 rows and 32 elements of K."""
TILE_ROWS = 16
TILE_TOKENS = 8
TILE_K = 32
"""Elements of K that a quad of lanes covers with one 16-byte copy each: two m16n8k16 instructions."""
PITCH_PAD = 4
"""Rows of padding in the FP32 partials: with a pitch of 4 modulo 16, the quads of a warp store to distinct banks."""
PADDED_TOKENS = (8, 16, 32, 64)


def partial_bytes(parts: int, tokens: int, pitch: int, split_k: int) -> int:
    """Bytes of shared memory for the sums of ``parts`` warps of K, and their total where a cluster reads it."""
    return (parts + (1 if split_k > 1 and parts > 1 else 0)) * tokens * pitch * FP32_BYTES


def _grid(split_k: int, n: int, rows: int) -> tuple[int, int, int]:
    # Row blocks along x, the only axis of a grid that holds more than 65535 of them.
    return (-(-n // rows), split_k, 1)


@dataclass(frozen=True)
class Simt:
    """Variant ``simt``: threads of a block walk K together, each with a vector of ``vector`` elements."""

    tokens: int
    block: int
    rows: int
    k_unroll: int
    vector: int
    split_k: int
    static_k: int
    """K, or 0 where K is a run-time scalar."""
    pdl: bool

    @staticmethod
    def of(workload: Workload, params: Params) -> Simt:
        values: dict[str, Any] = {**params, "static_k": workload["k"] if params["static_k"] else 0}
        return Simt(tokens=workload.tokens, **values)

    @property
    def warps(self) -> int:
        return self.block // WARP

    @property
    def sums(self) -> int:
        """FP32 sums that each thread keeps: one for every token and row."""
        return self.tokens * self.rows

    @property
    def words_a_step(self) -> int:
        """32-bit words of weights that a thread holds for each of its steps along K."""
        return self.rows * self.vector // 2

    def steps(self, k: Any) -> Any:
        """Whole steps along K of a block, for a K known now or at run time."""
        return k // (self.split_k * self.block * self.vector)

    @property
    def unrolled(self) -> bool:
        return self.static_k > 0 and self.steps(self.static_k) <= UNROLLED_STEPS

    @property
    def registers(self) -> int:
        """Registers that hold sums, the weights in use and those a group ahead, and the activations of a step."""
        return self.sums + 2 * self.k_unroll * self.words_a_step + self.tokens * self.vector // 2

    @property
    def shared_bytes(self) -> int:
        return partial_bytes(self.warps, self.tokens, self.rows, self.split_k)

    def launch(self, workload: Workload) -> Launch:
        return Launch(
            grid=_grid(self.split_k, workload["n"], self.rows),
            block=(self.block, 1, 1),
            cluster=(1, self.split_k, 1),
            shared_bytes=self.shared_bytes,
            programmatic=self.pdl,
            scalars=(workload["n"], workload["k"]),
        )


@dataclass(frozen=True)
class Mma:
    """Variant ``mma``: a warp owns ``rows_a_warp`` rows of w and walks its share of K in stages.

    Warps that walk the same share of K, each with rows of its own, are a group and share the activations.
    """

    padded_tokens: int
    warps: int
    rows: int
    rows_a_warp: int
    k_unroll: int
    stages: int
    split_k: int
    pdl: bool

    @staticmethod
    def of(workload: Workload, params: Params) -> Mma:
        values: dict[str, Any] = dict(params)
        return Mma(padded_tokens=next(size for size in PADDED_TOKENS if size >= workload.tokens), **values)

    @property
    def row_tiles(self) -> int:
        return self.rows_a_warp // TILE_ROWS

    @property
    def token_tiles(self) -> int:
        return self.padded_tokens // TILE_TOKENS

    @property
    def row_warps(self) -> int:
        """Warps that share the rows of a block; the rest of the warps divide K."""
        return max(1, self.rows // self.rows_a_warp)

    @property
    def k_warps(self) -> int:
        return max(1, self.warps // self.row_warps)

    @property
    def stage_k(self) -> int:
        """Elements of K in a stage of one warp."""
        return TILE_K * self.k_unroll

    @property
    def weight_streams(self) -> int:
        """Streams of a tile that hold weights, 8 rows each; those that hold tokens follow."""
        return self.row_warps * 2 * self.row_tiles

    @property
    def tile_bytes(self) -> int:
        """Bytes of 32 elements of K of a group of warps."""
        return (self.weight_streams + self.token_tiles) * STREAM_BYTES

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage of a group of warps."""
        return self.k_unroll * self.tile_bytes

    @property
    def lines_a_stage(self) -> int:
        return self.k_unroll // self.tiles_a_line

    @property
    def tiles_a_line(self) -> int:
        """Tiles of K that one copy instruction spans: two fill a line of 128 bytes."""
        return min(2, self.k_unroll)

    @property
    def line_bytes(self) -> int:
        return self.tiles_a_line * TILE_K * BF16_BYTES

    @property
    def lanes_a_row(self) -> int:
        """Neighbouring lanes that copy a line of one row."""
        return self.line_bytes // COPY_BYTES

    @property
    def rows_a_copy(self) -> int:
        """Rows that one copy instruction of a warp touches."""
        return WARP // self.lanes_a_row

    def piece(self, tile: int, stream: int, row: int) -> int:
        """Where in a stage the fragments of the rows from ``row`` on lie: [tile][stream of 8 rows][row][quad lane]."""
        return tile * self.tile_bytes + (stream + row // 8) * STREAM_BYTES + row % 8 * 4 * COPY_BYTES

    @property
    def pitch(self) -> int:
        return self.rows + PITCH_PAD

    @property
    def registers(self) -> int:
        """Registers that hold sums, fragments of one tile of K, and addresses."""
        return self.row_tiles * self.token_tiles * 4 + self.row_tiles * 8 + 4 + 4 * self.row_tiles + self.token_tiles

    @property
    def shared_bytes(self) -> int:
        partials = partial_bytes(self.k_warps, self.padded_tokens, self.pitch, self.split_k)
        return max(self.k_warps * self.stages * self.stage_bytes, partials)

    def launch(self, workload: Workload) -> Launch:
        return Launch(
            grid=_grid(self.split_k, workload["n"], self.rows),
            block=(self.warps * WARP, 1, 1),
            cluster=(1, self.split_k, 1),
            shared_bytes=self.shared_bytes,
            programmatic=self.pdl,
            scalars=(workload["n"], workload["k"], workload.tokens),
        )
