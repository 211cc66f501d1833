"""How both kernels reach mailboxes, tile by tile. Imports the DSL.

Mailbox ``i`` of a rank belongs to the i-th of the other ranks, in their order. Peers come in the order of the entry's
parameters: peer ``j`` is rank (rank + 1 + j) % world, so that no two ranks begin with the same one.

A slot is written by its peer once in ``parities`` launches. When a rank is in launch n, launch n - 1 had data of every
peer, whose launch n - 2 had therefore ended, with all that it read and armed again: two parities are enough.
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


def peer_rank(rank: Int32, peer: int, kernel: Tiles) -> Int32:
    there = rank + Int32(1 + peer)
    return Int32(cutlass.select_(there < kernel.world, there, there - kernel.world))


def box_at_peer(rank: Int32, peer: int, kernel: Tiles) -> Int32:
    """Which mailbox of a peer belongs to this rank."""
    return Int32(cutlass.select_(rank + Int32(1 + peer) < kernel.world, rank, rank - 1))


def box_rank(rank: Int32, box: int) -> Int32:
    """Which rank a mailbox of this rank belongs to."""
    return Int32(cutlass.select_(rank <= box, Int32(box + 1), Int32(box)))


def thread_vectors(thread: Int32, count: Any, kernel: Tiles) -> tuple[list[Int32], list[Any]]:
    """The vectors of a tile that a thread has, and whether each is one of its own.

    Where a tile has no more, the thread's first vector stands in: reading, summing and arming it twice changes
    nothing. Sending it twice would: the second could arrive after its receiver has armed the slot again.
    """
    vectors, real = [thread], [True]
    for i in range(1, kernel.thread_vectors):
        vector = thread + i * kernel.threads
        if kernel.even:
            vectors.append(vector)
            real.append(True)
        else:
            there = vector < count
            vectors.append(Int32(cutlass.select_(there, vector, thread)))
            real.append(there)
    return vectors, real


def has_work(thread: Int32, count: Any, kernel: Tiles) -> Any:
    return True if kernel.even else thread < count


def slots_at_peers(
    peers: list[Int64], rank: Int32, tile: Int32, vectors: list[Int32], first_box: int, kernel: Tiles
) -> list[list[Int64]]:
    """Where this rank's vectors of a tile go, by vector and peer.

    :param peers: the addresses of the peers' mailboxes of this launch.
    """
    mine = [peer + Int64(box_at_peer(rank, p, kernel) + first_box) * kernel.box_bytes for p, peer in enumerate(peers)]
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
        address = peers[0] + Int64(kernel.flag_byte(box_at_peer(rank, 0, kernel) + first_box, tile))
        for i in cutlass.range_constexpr(1, kernel.peers):
            other = peers[i] + Int64(kernel.flag_byte(box_at_peer(rank, i, kernel) + first_box, tile))
            address = Int64(cutlass.select_(thread == i, other, address))
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
