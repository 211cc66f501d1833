"""What a prefetch asks for: exactly the first bytes of the ranges, in order, in aligned pieces within a range.

First the host's arithmetic, then the compiled kernel, run instruction by instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from megatune_kernels.errors import MegatuneError
from megatune_kernels.prefetch.ranges import ALIGNMENT
from megatune_kernels.prefetch.ranges import MIB
from megatune_kernels.prefetch.ranges import Range
from megatune_kernels.prefetch.ranges import check_ranges
from megatune_kernels.prefetch.ranges import walk
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

CHUNKS = st.sampled_from([16, 48, 4096, 16384, 65536])


@st.composite
def tables(draw: st.DrawFn, most: int) -> list[Range]:
    """Ranges that do not touch, in any order of their addresses."""
    sizes = draw(st.lists(st.integers(1, most // ALIGNMENT), min_size=1, max_size=5))
    address, found = 1 << 40, []
    for size in sizes:
        found.append((address, size * ALIGNMENT))
        address += (size + draw(st.integers(1, 64))) * ALIGNMENT
    return draw(st.permutations(found))


def first_bytes(ranges: Sequence[Range], depth: int) -> list[Range]:
    found = []
    for address, size in ranges:
        if min(size, depth) > 0:
            found.append((address, min(size, depth)))
        depth -= min(size, depth)
    return found


def check(asked: Sequence[Sequence[Range]], ranges: Sequence[Range], depth: int, chunk: int) -> None:
    """:param asked: by block."""
    pieces = [piece for block in asked for piece in block]
    for address, size in pieces:
        assert address % ALIGNMENT == size % ALIGNMENT == 0
        assert 0 < size <= chunk
        assert any(start <= address and address + size <= start + length for start, length in ranges)
    # Put together they are the first bytes, each once.
    merged: list[Range] = []
    place = {start: i for i, (start, _) in enumerate(ranges)}
    for address, size in sorted(pieces):
        if merged and sum(merged[-1]) == address and address not in place:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((address, size))
    assert sorted(merged) == sorted(first_bytes(ranges, depth))
    # Every block goes through them in the order in which they are read, and none has much more to do than another.
    order = [[(next(i for i, (s, n) in enumerate(ranges) if s <= a < s + n), a) for a, _ in block] for block in asked]
    assert all(block == sorted(block) for block in order)
    assert max(map(len, asked)) - min(map(len, asked)) <= 1


@settings(max_examples=50)
@given(tables(1 << 20), st.integers(0, 5 << 16), CHUNKS, st.integers(1, 70))
def test_the_blocks_ask_for_the_first_bytes_of_the_ranges(
    ranges: list[Range], units: int, chunk: int, blocks: int
) -> None:
    depth = units * ALIGNMENT
    asked = [list(walk(ranges, depth, chunk, block, blocks)) for block in range(blocks)]
    check(asked, ranges, depth, chunk)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([(4096, 64), (4100, 64)], "range 2: address 4100 is not a multiple of 16"),
        ([(4096, 64), (8192, 60)], "range 2: bytes 60 is not a multiple of 16"),
        ([(4096, 0)], "range 1: bytes 0: a range has at least 16"),
    ],
)
def test_a_range_that_cannot_be_asked_for_is_named(ranges: list[Range], said: str) -> None:
    with pytest.raises(MegatuneError, match=f"^{said}"):
        check_ranges(ranges)
    check_ranges(ranges[:1] if len(ranges) > 1 else [(4096, 16)])


class Memory:
    """What the kernel sees of a GPU: a table, a timer, and the unit that takes its requests."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._words = [each & 0xFFFFFFFF for pair in ranges for v in pair for each in (v, v >> 32)]
        self.asked: list[Range] = []
        self.now = 1_000
        self.first_at: int | None = None

    def load(self, address: int, count: int) -> list[int]:
        assert address % (4 * count) == 0
        return self._words[address // 4 : address // 4 + count]

    def prefetch(self, address: int, size: int) -> None:
        self.first_at = self.first_at or self.now
        self.asked.append((address, size))

    def time(self) -> int:
        self.now += 32
        return self.now


@cache
def compiled(arch: str) -> str:
    from cutlass import Int32
    from cutlass import Int64
    from cutlass import cute

    from megatune_kernels.artifact import compile_for
    from megatune_kernels.prefetch import kernels

    stream = cute.runtime.make_fake_stream()
    text = compile_for(architecture(arch), kernels.launch_prefetch, Int64(0), *[Int32(1)] * 4, stream).artifacts.PTX
    assert isinstance(text, str)
    return text


def run(arch: str, ranges: Sequence[Range], depth_mib: int, chunk: int, blocks: int, delay: int = 0) -> list[Memory]:
    """Run every thread of every block; by block what it asked for."""
    from ptx_machine import kernel_of

    kernel = kernel_of(compiled(arch))
    found = []
    for block in range(blocks):
        memory = Memory(ranges)
        for thread in (0, 1, 31):
            asked = len(memory.asked)
            for _ in kernel(memory, (0, len(ranges), depth_mib, chunk, delay), thread, block, blocks):
                assert len(memory.asked) < 10**6
            assert thread == 0 or len(memory.asked) == asked
        found.append(memory)
    return found


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@settings(max_examples=15, deadline=None)
@given(tables(3 << 20), st.integers(1, 6), st.sampled_from([4096, 16384, 65536]), st.integers(1, 9))
def test_the_compiled_kernel_asks_for_the_same(
    arch: str, ranges: list[Range], depth_mib: int, chunk: int, blocks: int
) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    asked = [memory.asked for memory in run(arch, ranges, depth_mib, chunk, blocks)]
    assert asked == [list(walk(ranges, depth_mib * MIB, chunk, block, blocks)) for block in range(blocks)]
    check(asked, ranges, depth_mib * MIB, chunk)


def test_ranges_may_be_gigabytes_and_lie_anywhere() -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    ranges = [((1 << 47) - 16, 16), (0x7F_FFFF_F000, 3 << 30)]
    asked = [memory.asked for memory in run("sm_90a", ranges, 2048, 65536, 3)]
    assert asked == [list(walk(ranges, 2048 * MIB, 65536, block, 3)) for block in range(3)]


def test_nothing_is_asked_for_before_the_delay_is_over() -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    for delay in (0, 640, 5000):
        (memory,) = run("sm_90a", [(1 << 40, MIB)], 1, 65536, 1, delay)
        assert memory.first_at is not None
        assert delay <= memory.first_at - 1_000 <= delay + 100
