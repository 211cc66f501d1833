"""How both kernels reach mailboxes, tile by tile. Imports the DSL.

A slot is written by its peer once in ``parities`` launches, and must then be armed. When a rank is in launch n, its
launch n - 1 has had data of every peer, so that peer was in launch n - 1, and its launch n - 2 had ended, with all that
it read and armed again: two parities are enough. "Ended" is a kernel boundary, or what ``griddepcontrol.wait`` waits
for, behind which the memory of the GPU has what was stored; so nothing is read, and nothing sent, before it.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute

from megatune_kernels.reduction.device import load
from megatune_kernels.reduction.device import lower_flag
from megatune_kernels.reduction.device import raise_flag
from megatune_kernels.reduction.device import send
from megatune_kernels.reduction.device import wait_for_flag
from megatune_kernels.reduction.device import wait_for_words
from megatune_kernels.reduction.geometry import ARMED
from megatune_kernels.reduction.geometry import SENTINEL
from megatune_kernels.reduction.geometry import Tiles


def begin(kernel: Tiles) -> None:
    """What a launch does before it reads anything or shows anything to a peer.

    The next launch may come onto the GPU now, not earlier: never more than two launches of a rank are on it.
    """
    if kernel.pdl:
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()


def parity_byte(number: Int32, kernel: Tiles) -> Int64:
    """Where in a workspace the mailboxes of a launch lie."""
    return Int64(Uint32(number) % Uint32(kernel.parities)) * kernel.parity_bytes


def choose(condition: Any, yes: Any, no: Any) -> Int32:
    return Int32(cutlass.select_(condition, Int32(yes), Int32(no)))


def thread_vectors(thread: Int32, count: Any, kernel: Tiles) -> tuple[list[Int32], list[Any]]:
    """The vectors of a tile that a thread has, and whether each is one of its own."""
    found = [kernel.thread_vector(thread, i, count, choose) for i in range(kernel.thread_vectors)]
    return [vector for vector, _ in found], [own for _, own in found]


def slots_at_peers(
    peers: list[Int64], rank: Int32, tile: Int32, vectors: list[Int32], first_box: int, kernel: Tiles
) -> list[list[Int64]]:
    """Where this rank's vectors of a tile go, by vector and peer.

    :param peers: the addresses of the peers' mailboxes of this launch.
    """
    boxes = [kernel.box_at_peer(rank, p, choose) + first_box for p in range(kernel.peers)]
    mine = [peer + Int64(box) * kernel.box_bytes for peer, box in zip(peers, boxes, strict=True)]
    return [[box + Int64(kernel.box_byte(tile, vector)) for box in mine] for vector in vectors]


def receive(slots: list[Int64], boxes: list[int], kernel: Tiles) -> list[list[list[Uint32]]]:
    """What is in the mailboxes at these slots, by slot and mailbox: at once behind a flag, else when it has come."""
    if kernel.signal == SENTINEL:
        return wait_for_words(slots, boxes, kernel.words, kernel.backoff)
    return [[load(slot + box, kernel.words) for box in boxes] for slot in slots]


def arm(slots: list[Int64], boxes: list[int], kernel: Tiles) -> None:
    """Put the sentinel back into the slots that were read."""
    if kernel.signal == SENTINEL:
        for slot in slots:
            for box in boxes:
                send(slot + box, [Uint32(ARMED[SENTINEL])] * kernel.words)


@cute.jit
def raise_flags(
    peers: list[Int64], rank: Int32, thread: Int32, tile: Int32, first_box: cutlass.Constexpr, kernel: cutlass.Constexpr
) -> None:
    """Tell every peer that the block's tile is in its mailbox; each of the first threads tells one.

    :param peers: the addresses of the peers' mailboxes of this launch.
    """
    cute.arch.sync_threads()
    if thread < kernel.peers:
        boxes = [kernel.box_at_peer(rank, p, choose) + first_box for p in range(kernel.peers)]
        flags = [peer + Int64(kernel.flag_byte(box, tile)) for peer, box in zip(peers, boxes, strict=True)]
        address = flags[0]
        for i in cutlass.range_constexpr(1, kernel.peers):
            address = Int64(cutlass.select_(thread == i, flags[i], address))
        raise_flag(address)


@cute.jit
def wait_for_flags(
    mailboxes: Int64, thread: Int32, tile: Int32, first_box: cutlass.Constexpr, kernel: cutlass.Constexpr
) -> None:
    """Return when every peer's tile is in its mailbox, visible to the block; the flags are down again."""
    if thread < kernel.peers:
        address = mailboxes + Int64(kernel.flag_byte(thread + first_box, tile))
        wait_for_flag(address, kernel.backoff)
        lower_flag(address)
    cute.arch.sync_threads()
