"""A page of memory that the ranks of a group share with their coordinator: what each does, and where they meet.

Nothing here waits for ever: the coordinator reads the page while ranks are stuck, and a rank that waits for others
gives up after a while. Records carry a checksum, so what is read while it is written is not taken for written, whatever
the order in which a processor makes stores visible.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

SLOT_BYTES = 1 << 14
SLOTS_A_RANK = 3
"""What the rank does, and two for meeting: one is written while others may still read the one before."""
RECORD = struct.Struct("<IIQ")
"""Checksum of the rest, bytes of the content, number."""
SPIN_S = 0.002
"""How long a wait asks without a pause: ranks that do the same things come within that."""
NAP_S = 50e-6
GIVE_UP_S = 300.0
"""Beyond every limit of the coordinator, which alone decides what a hang is."""


@dataclass(frozen=True)
class Doing:
    """What a rank does."""

    phase: str
    waits: bool = False
    """For other ranks."""


class LateError(Exception):
    """Ranks did not come to where the others met."""


class Page:
    """The page as one process sees it, made by the coordinator and opened by the number of its file."""

    def __init__(self, file: int, world: int) -> None:
        self.world = world
        self.file = file
        self._memory = mmap.mmap(file, _bytes(world))

    @staticmethod
    def create(world: int) -> Page:
        """An empty page, which ends with the last process that has it open."""
        file = os.memfd_create("megatune-group")
        os.ftruncate(file, _bytes(world))
        return Page(file, world)

    def close(self) -> None:
        self._memory.close()
        os.close(self.file)

    def publish(self, rank: int, doing: Doing) -> None:
        """Say what a rank does."""
        self._write(rank, 0, 0, asdict(doing))

    def doing(self, rank: int) -> Doing | None:
        """What a rank does; None before it did anything."""
        for _ in range(100):
            number, content = self._read(rank, 0)
            if content is not None:
                return Doing(**content)
            if number is None:
                return None
        return None

    def post(self, rank: int, number: int, content: Any) -> None:
        """Leave something at meeting ``number``, counted from 1. Before meeting n + 1 is over nobody posts at n + 2."""
        self._write(rank, 1 + number % 2, number, content)

    def posted(self, rank: int, number: int) -> Any | None:
        """What a rank left at a meeting; None before it came."""
        found, content = self._read(rank, 1 + number % 2)
        return content if found == number else None

    def progress(self) -> tuple[bytes, ...]:
        """Changes whenever a rank begins something or comes to a meeting."""
        starts = (self._start(rank, slot) for rank in range(self.world) for slot in range(SLOTS_A_RANK))
        return tuple(self._memory[start : start + RECORD.size] for start in starts)

    def _start(self, rank: int, slot: int) -> int:
        return (rank * SLOTS_A_RANK + slot) * SLOT_BYTES

    def _write(self, rank: int, slot: int, number: int, content: Any) -> None:
        text = json.dumps(content).encode()
        if RECORD.size + len(text) > SLOT_BYTES:
            raise ValueError(f"{len(text)} bytes are too many for a slot of the page")
        rest = struct.pack("<IQ", len(text), number) + text
        start = self._start(rank, slot)
        record = struct.pack("<I", zlib.crc32(rest)) + rest
        self._memory[start : start + len(record)] = record

    def _read(self, rank: int, slot: int) -> tuple[int | None, Any]:
        """(number, content); (None, None) of an empty slot, (number, None) of one that is being written."""
        start = self._start(rank, slot)
        checksum, length, number = RECORD.unpack_from(self._memory, start)
        if (checksum, length, number) == (0, 0, 0):
            return None, None
        if length > SLOT_BYTES - RECORD.size:
            return number, None
        rest = self._memory[start + 4 : start + RECORD.size + length]
        if zlib.crc32(rest) != checksum:
            return number, None
        return struct.unpack_from("<Q", rest, 4)[0], json.loads(rest[RECORD.size - 4 :])


def _bytes(world: int) -> int:
    return world * SLOTS_A_RANK * SLOT_BYTES


class Meeting:
    """Where the ranks of this process meet those of the others, time after time."""

    def __init__(self, page: Page, ranks: tuple[int, ...]) -> None:
        self._page = page
        self._ranks = ranks
        self._others = tuple(rank for rank in range(page.world) if rank not in ranks)
        self._number = 0
        self._phase = "start"

    def begin(self, phase: str) -> None:
        """Say what all ranks of this process do from now on."""
        self._phase = phase
        self.say(self._ranks, waits=False)

    def say(self, ranks: tuple[int, ...], *, waits: bool) -> None:
        """Say of ranks of this process whether they wait for others."""
        for rank in ranks:
            self._page.publish(rank, Doing(self._phase, waits))

    def expected(self) -> list[Any]:
        """What others have left already where this process is to come next."""
        left = (self._page.posted(rank, self._number + 1) for rank in self._others)
        return [content for content in left if content is not None]

    def exchange(self, contents: Mapping[int, Any], give_up_s: float = GIVE_UP_S) -> list[Any]:
        """Leave the contents of this process's ranks and wait for those of all, which are returned by rank.

        :raises LateError: naming those that did not come within ``give_up_s`` seconds.
        """
        self._number += 1
        for rank, content in contents.items():
            self._page.post(rank, self._number, content)
        found = dict(contents)
        missing = self._others
        began = time.monotonic()
        said = False
        while missing:
            for rank in missing:
                content = self._page.posted(rank, self._number)
                if content is not None:
                    found[rank] = content
            missing = tuple(rank for rank in missing if rank not in found)
            waited = time.monotonic() - began
            if missing and waited > SPIN_S:
                if not said:
                    self.say(self._ranks, waits=True)
                    said = True
                if waited > give_up_s:
                    raise LateError(self._late(missing, waited))
                time.sleep(NAP_S)
        if said:
            self.say(self._ranks, waits=False)
        return [found[rank] for rank in sorted(found)]

    def _late(self, missing: tuple[int, ...], waited: float) -> str:
        states = {rank: self._page.doing(rank) for rank in missing}
        what = ", ".join(f"rank {rank} ({state.phase if state else 'not started'})" for rank, state in states.items())
        return f"{what} did not come within {waited:.0f} s"
