"""The arithmetic of a config: tiles, mailboxes and how a kernel is launched. Imports no DSL.

A partial [tokens, width] is cut into tiles of ``tile_tokens`` rows and ``columns`` columns, and a tile into vectors,
each the access of one thread. A rank's workspace is ``parities`` times the same mailboxes; a mailbox is what one peer
writes into, tile after tile, each tile without gaps. Mailbox ``i`` of a rank belongs to the i-th of the other ranks, in
their order. Peer ``j`` of a rank, in the order of the entry's parameters, is rank (rank + 1 + j) % world, so that no
two ranks send to the same one first.

What is computed of ranks, tiles and vectors takes integers of Python and of a kernel alike, so that host, tests and
device agree; where it depends on a condition, ``choose(condition, yes, no)`` is the caller's.

``FullFanout`` and ``TwoStage`` are also what the kernels are specialised for: two workloads that give equal values
share an artifact.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from typing import Self

from megatune_kernels.operator import Launch
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.space import Params

BF16_BYTES = 2
WORD_BYTES = 4
LINE_BYTES = 128
"""Mailboxes begin on a line of the L2, and so does the workspace."""
SECTOR_BYTES = 32
FLAG_BYTES = SECTOR_BYTES
"""One flag to a sector of the L2: ranks that raise neighbouring flags do not write the same one."""
SENTINEL = "sentinel"
FLAG = "flag"
ARMED = {SENTINEL: 0x80008000, FLAG: 0}
"""What an empty mailbox holds: two BF16 -0.0, which is never sent, or a flag that is not raised."""
RAISED = 1
SIDE_REGISTERS = 56
"""What a thread needs beside the words of its vectors: addresses, the sums of one vector, counters."""

Choose = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Tiles:
    """What both variants have in common."""

    tokens: int
    width: int
    world: int
    blocks: int
    """At most; there is no more than one for each tile."""
    threads: int
    vector: int
    """Bytes."""
    columns: int
    tile_tokens: int
    parities: int
    signal: str
    backoff: int
    """ns"""
    ahead: int
    """Tiles that a block sends before it waits for the first of them."""
    pdl: bool

    @classmethod
    def of(cls, workload: Workload, params: Params) -> Self:
        values: dict[str, Any] = dict(params)
        return cls(tokens=workload.tokens, width=workload["width"], world=workload.world, **values)

    @property
    @abstractmethod
    def extent(self) -> int:
        """Columns that tiles divide."""

    @property
    @abstractmethod
    def boxes(self) -> int:
        """Mailboxes of one parity."""

    @property
    @abstractmethod
    def held_vectors(self) -> int:
        """Vectors that a thread holds at once, for each of those that it has of a tile."""

    @property
    def peers(self) -> int:
        return self.world - 1

    @property
    def words(self) -> int:
        """32-bit words of a vector."""
        return self.vector // WORD_BYTES

    @property
    def column_vectors(self) -> int:
        """Vectors in a row of a tile."""
        return self.columns * BF16_BYTES // self.vector

    @property
    def tile_vectors(self) -> int:
        return self.tile_tokens * self.column_vectors

    @property
    def tile_bytes(self) -> int:
        return self.tile_tokens * self.columns * BF16_BYTES

    @property
    def column_tiles(self) -> int:
        return self.extent // self.columns

    @property
    def tiles(self) -> int:
        return -(-self.tokens // self.tile_tokens) * self.column_tiles

    @property
    def grid(self) -> int:
        """Blocks of a launch."""
        return min(self.blocks, self.tiles)

    @property
    def rounds(self) -> int:
        """Tiles of the block that has the most: block b has the tiles b, b + grid, and so on."""
        return -(-self.tiles // self.grid)

    @property
    def thread_vectors(self) -> int:
        """Vectors of a tile of the thread that has the most: thread t has t, t + threads, and so on."""
        return -(-self.tile_vectors // self.threads)

    @property
    def even(self) -> bool:
        """Whether every thread has as many vectors in every tile."""
        return self.tile_vectors % self.threads == 0 and self.tokens % self.tile_tokens == 0

    def peer_rank(self, rank: Any, peer: int, choose: Choose) -> Any:
        there = rank + (1 + peer)
        return choose(there < self.world, there, there - self.world)

    def box_at_peer(self, rank: Any, peer: int, choose: Choose) -> Any:
        """Which mailbox of its peer ``peer`` belongs to a rank."""
        return choose(rank + (1 + peer) < self.world, rank, rank - 1)

    def box_rank(self, rank: Any, box: int, choose: Choose) -> Any:
        """Which rank a mailbox of a rank belongs to."""
        return choose(rank <= box, box + 1, box)

    def vectors(self, tile: Any, choose: Choose) -> Any:
        """Vectors of a tile; fewer in the last rows, where ``tile_tokens`` does not divide the tokens."""
        if self.tokens % self.tile_tokens == 0:
            return self.tile_vectors
        left = self.tokens - tile // self.column_tiles * self.tile_tokens
        return choose(left < self.tile_tokens, left, self.tile_tokens) * self.column_vectors

    def has_work(self, thread: Any, count: Any) -> Any:
        """Whether a thread has any of the ``count`` vectors of a tile."""
        return self.even or thread < count

    def thread_vector(self, thread: Any, index: int, count: Any, choose: Choose) -> tuple[Any, Any]:
        """A thread's vector of a tile, and whether it is one of its own.

        Where the tile has no more, the thread's first vector stands in: reading, summing and arming it twice changes
        nothing. Sending it twice would: the second could arrive after its receiver has armed the slot again.
        """
        vector = thread + index * self.threads
        if self.even or index == 0:
            return vector, True
        return choose(vector < count, vector, thread), vector < count

    def element_byte(self, tile: Any, vector: Any) -> Any:
        """Where in a partial a vector of a tile of the first columns lies; those of another owner lie a share on."""
        row = tile // self.column_tiles * self.tile_tokens
        column = tile % self.column_tiles * self.columns * BF16_BYTES if self.column_tiles > 1 else 0
        if self.tile_tokens == 1 or self.columns == self.width:
            # One stretch of the partial.
            return row * (self.width * BF16_BYTES) + column + vector * self.vector
        row = row + vector // self.column_vectors
        return row * (self.width * BF16_BYTES) + column + vector % self.column_vectors * self.vector

    def box_byte(self, tile: Any, vector: Any) -> Any:
        """Where in a mailbox a vector of a tile lies."""
        return tile * self.tile_bytes + vector * self.vector

    @property
    def box_bytes(self) -> int:
        """Bytes from one mailbox to the next."""
        return -(-self.tiles * self.tile_bytes // LINE_BYTES) * LINE_BYTES

    def flag_byte(self, box: Any, tile: Any) -> Any:
        """Where in a parity's mailboxes the flag of a tile lies: behind the data of all of them."""
        return self.boxes * self.box_bytes + (box * self.tiles + tile) * FLAG_BYTES

    @property
    def parity_bytes(self) -> int:
        flags = self.boxes * self.tiles * FLAG_BYTES if self.signal == FLAG else 0
        return self.boxes * self.box_bytes + -(-flags // LINE_BYTES) * LINE_BYTES

    @property
    def registers(self) -> int:
        """Registers of a thread, as far as they can be foreseen."""
        return self.held_vectors * self.thread_vectors * self.words + SIDE_REGISTERS

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.parities * self.parity_bytes, LINE_BYTES, ARMED[self.signal])

    @property
    def launch(self) -> Launch:
        return Launch(
            grid=(self.grid, 1, 1),
            block=(self.threads, 1, 1),
            shared_bytes=0,
            programmatic=self.pdl,
            resident=True,
        )


@dataclass(frozen=True)
class FullFanout(Tiles):
    """Variant ``full_fanout``: a mailbox for each peer's partial."""

    @property
    def extent(self) -> int:
        return self.width

    @property
    def boxes(self) -> int:
        return self.peers

    @property
    def held_vectors(self) -> int:
        return self.world


@dataclass(frozen=True)
class TwoStage(Tiles):
    """Variant ``two_stage``: for each peer a mailbox for its partial of this rank's columns, and one for its result."""

    @property
    def share(self) -> int:
        """Columns of an owner."""
        return self.width // self.world

    @property
    def share_bytes(self) -> int:
        return self.share * BF16_BYTES

    @property
    def extent(self) -> int:
        return self.share

    @property
    def boxes(self) -> int:
        return 2 * self.peers

    @property
    def held_vectors(self) -> int:
        return self.world
