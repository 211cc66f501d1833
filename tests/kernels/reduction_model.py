"""The reduction kernels on the host: what they move, and what order their ranks may run in.

``reduced`` follows the index arithmetic of every thread, over the memory of all ranks. ``Ranks`` follows the protocol:
blocks run in any order, and what is stored arrives at any time that the memory model allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

from megatune_kernels.reduction.geometry import FullFanout
from megatune_kernels.reduction.geometry import Tiles
from megatune_kernels.reduction.geometry import TwoStage

EMPTY = -1


def choose(condition: Any, yes: Any, no: Any) -> Any:
    return yes if condition else no


def vectors(tiles: Tiles) -> Iterator[tuple[int, int, bool]]:
    """Every (tile, vector, whether it is sent) that some thread of some block handles."""
    for block in range(tiles.grid):
        for tile in range(block, tiles.tiles, tiles.grid):
            count = tiles.vectors(tile, choose)
            for thread in range(tiles.threads):
                if tiles.has_work(thread, count):
                    for index in range(tiles.thread_vectors):
                        yield tile, *tiles.thread_vector(thread, index, count, choose)


class _Memory:
    """BF16 elements that are written once, and whole vectors at their alignment."""

    def __init__(self, tiles: Tiles, size: int) -> None:
        self._vector = tiles.vector
        self.elements = np.full(size // 2, EMPTY, dtype=np.int64)

    def store(self, byte: int, values: np.ndarray, *, again: bool = False) -> None:
        at = self._at(byte)
        old = self.elements[at]
        assert (old == EMPTY).all() or (again and (old == values).all()), "written twice"
        self.elements[at] = values

    def load(self, byte: int) -> np.ndarray:
        found = self.elements[self._at(byte)]
        assert (found != EMPTY).all(), "read before it was written"
        return found

    def _at(self, byte: int) -> slice:
        assert byte % self._vector == 0, "not aligned"
        assert 0 <= byte <= 2 * len(self.elements) - self._vector, "outside"
        return slice(byte // 2, (byte + self._vector) // 2)


def reduced(tiles: FullFanout | TwoStage, partials: np.ndarray) -> np.ndarray:
    """Outputs [world, tokens, width] for partials [world, tokens, width] of integers, as the kernels make them."""
    ranks = range(tiles.world)
    own = [_Memory(tiles, partial.nbytes // 4) for partial in partials]
    for memory, partial in zip(own, partials, strict=True):
        memory.elements[:] = partial.ravel()
    outputs = [_Memory(tiles, partials[0].nbytes // 4) for _ in ranks]
    heaps = [_Memory(tiles, tiles.parity_bytes) for _ in ranks]
    handled = list(vectors(tiles))
    share = tiles.share_bytes if isinstance(tiles, TwoStage) else 0

    def send(rank: int, first_box: int, tile: int, vector: int, peer: int, values: np.ndarray) -> None:
        there = tiles.peer_rank(rank, peer, choose)
        box = tiles.box_at_peer(rank, peer, choose) + first_box
        heaps[there].store(box * tiles.box_bytes + tiles.box_byte(tile, vector), values)

    def received(rank: int, box: int, tile: int, vector: int) -> np.ndarray:
        return heaps[rank].load(box * tiles.box_bytes + tiles.box_byte(tile, vector))

    for rank in ranks:
        for tile, vector, sent in handled:
            for peer in range(tiles.peers if sent else 0):
                owner = tiles.peer_rank(rank, peer, choose)
                values = own[rank].load(tiles.element_byte(tile, vector) + owner * share)
                send(rank, 0, tile, vector, peer, values)
    for rank in ranks:
        for tile, vector, sent in handled:
            place = tiles.element_byte(tile, vector) + rank * share
            total = own[rank].load(place) + sum(received(rank, box, tile, vector) for box in range(tiles.peers))
            outputs[rank].store(place, total, again=not sent)
            for peer in range(tiles.peers if sent and share else 0):
                send(rank, tiles.peers, tile, vector, peer, total)
    for rank in ranks:
        for tile, vector, sent in handled:
            for box in range(tiles.peers if share else 0):
                place = tiles.element_byte(tile, vector) + tiles.box_rank(rank, box, choose) * share
                outputs[rank].store(place, received(rank, tiles.peers + box, tile, vector), again=not sent)
    return np.stack([output.elements.reshape(partials[0].shape) for output in outputs])


class Broken(Exception):
    """What the protocol must never come to."""


Slot = tuple[int, int, int, int]
"""Rank, parity, mailbox, tile."""


@dataclass
class Ranks:
    """All ranks of a group, their blocks run step by step in an order that chance chooses.

    A store is performed some time after it was made: into this rank's memory at the latest when the launch ends, into
    a peer's at any time at all.
    """

    tiles: FullFanout | TwoStage
    launches: int
    chance: random.Random
    slots: dict[Slot, tuple[int, int, int] | None] = field(default_factory=dict)
    """What is there: the rank that sent it, the launch and the stage; None is armed."""
    flying: list[tuple[Slot, tuple[int, int, int]]] = field(default_factory=list)
    arming: dict[int, list[Slot]] = field(default_factory=dict)

    def run(self) -> None:
        """:raises Broken: when a slot is overwritten, holds what was not expected, or all wait for one another."""
        world = self.tiles.world
        done = [0] * world
        running = [self._launch(rank, 0) for rank in range(world)]
        self.arming = {rank: [] for rank in range(world)}
        while any(count < self.launches for count in done):
            moves: list[tuple[str, int, int]] = [("arrive", i, 0) for i in range(len(self.flying))]
            moves += [("arm", rank, i) for rank in range(world) for i in range(len(self.arming[rank]))]
            for rank in range(world):
                moves += [("step", rank, i) for i, block in enumerate(running[rank]) if self._can(block)]
                if done[rank] < self.launches and not running[rank]:
                    moves.append(("next", rank, 0))
            if not moves:
                raise Broken("all wait for one another")
            move, rank, i = self.chance.choice(moves)
            if move == "arrive":
                self._arrive(*self.flying.pop(rank))
            elif move == "arm":
                self.slots[self.arming[rank].pop(i)] = None
            elif move == "next":
                # The launch has ended, so this GPU's memory has what it stored there.
                while self.arming[rank]:
                    self.slots[self.arming[rank].pop()] = None
                done[rank] += 1
                running[rank] = self._launch(rank, done[rank]) if done[rank] < self.launches else []
            elif not self._step(running[rank][i]):
                running[rank].pop(i)

    def _launch(self, rank: int, number: int) -> list[list[Any]]:
        """The steps that are left of each block: a store into a peer's slot, or the wait for one of its own."""
        return [list(self._block(rank, number, block)) for block in range(self.tiles.grid)]

    def _block(self, rank: int, number: int, block: int) -> Iterator[tuple[str, Slot, tuple[int, int, int]]]:
        tiles = self.tiles
        stages = 2 if isinstance(tiles, TwoStage) else 1
        ahead = 0 if tiles.rounds == 1 else tiles.ahead
        parity = number % tiles.parities
        for step in range(tiles.rounds + stages * ahead):
            for stage in range(stages + 1):
                tile = block + (step - stage * ahead) * tiles.grid
                if not 0 <= tile < tiles.tiles:
                    continue
                for box in range(tiles.peers if stage else 0):
                    source = tiles.box_rank(rank, box, choose)
                    slot = (rank, parity, (stage - 1) * tiles.peers + box, tile)
                    yield "wait", slot, (source, number, stage - 1)
                for peer in range(tiles.peers if stage < stages else 0):
                    there = tiles.peer_rank(rank, peer, choose)
                    box = stage * tiles.peers + tiles.box_at_peer(rank, peer, choose)
                    yield "store", (there, parity, box, tile), (rank, number, stage)

    def _can(self, block: list[Any]) -> bool:
        return not block or block[0][0] == "store" or self.slots.get(block[0][1]) is not None

    def _step(self, block: list[Any]) -> bool:
        if not block:
            return False
        kind, slot, value = block.pop(0)
        if kind == "store":
            self.flying.append((slot, value))
        else:
            if self.slots[slot] != value:
                raise Broken(f"{slot} holds {self.slots[slot]} instead of {value}")
            self.arming[slot[0]].append(slot)
        return True

    def _arrive(self, slot: Slot, value: tuple[int, int, int]) -> None:
        if self.slots.get(slot) is not None:
            raise Broken(f"{value} overwrites {self.slots[slot]} in {slot}")
        self.slots[slot] = value
