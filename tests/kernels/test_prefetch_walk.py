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
from megatune_kernels.prefetch.ranges import Matrix
from megatune_kernels.prefetch.ranges import Range
from megatune_kernels.prefetch.ranges import check_ranges
from megatune_kernels.prefetch.ranges import walk
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

CHUNKS = st.sampled_from([16, 48, 4096, 16384, 65536])


@st.composite
def tables(draw: st.DrawFn, most: int) -> list[Matrix]:
    """Matrices that do not touch, in any order of their addresses."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 70), st.integers(1, 500)), min_size=1, max_size=5))
    address, found = 1 << 40, []
    for rows, width in shapes:
        width = min(width, max(1, most // ALIGNMENT // rows))
        found.append(Matrix(address, rows, width * ALIGNMENT))
        address += (rows * width + draw(st.integers(1, 64))) * ALIGNMENT
    return draw(st.permutations(found))


def wanted(matrices: Sequence[Matrix], depth: int, columns: bool, head: int) -> list[list[Range]]:
    """What should be asked for, by matrix: runs of bytes as they lie."""
    found = []
    for matrix in matrices:
        size, runs = matrix.rows * matrix.row_bytes, []
        if columns:
            width = min(matrix.row_bytes - head, depth // matrix.rows // ALIGNMENT * ALIGNMENT)
            runs = [(matrix.address + row * matrix.row_bytes + head, width) for row in range(matrix.rows)]
            depth = depth - width * matrix.rows if width == matrix.row_bytes - head else 0
        else:
            runs = [(matrix.address, min(size, depth))]
            depth -= min(size, depth)
        found.append([run for run in runs if run[1]])
        head = 0
    return found


def check(
    asked: Sequence[Sequence[Range]],
    matrices: Sequence[Matrix],
    depth: int,
    chunk: int,
    columns: bool = False,
    head: int = 0,
) -> None:
    """:param asked: by block."""
    pieces = sorted(piece for block in asked for piece in block)
    for address, size in pieces:
        assert address % ALIGNMENT == size % ALIGNMENT == 0
        assert 0 < size <= chunk
    # Put together they are what is wanted, each byte once.
    starts = {run[0]: run[1] for runs in wanted(matrices, depth, columns, head) for run in runs}
    merged: list[Range] = []
    for address, size in pieces:
        if merged and sum(merged[-1]) == address and address not in starts:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((address, size))
    assert merged == sorted(starts.items())

    # Every block goes through them in the order in which they are read, and none has much more to do than another.
    def place(address: int) -> tuple[int, int, int]:
        number, matrix = next(
            (i, m) for i, m in enumerate(matrices) if m.address <= address < m.address + m.rows * m.row_bytes
        )
        row, column = divmod(address - matrix.address, matrix.row_bytes)
        return (number, column, row) if columns else (number, row, column)

    order = [[place(address) for address, _ in block] for block in asked]
    assert all(block == sorted(block) for block in order)
    assert max(map(len, asked)) - min(map(len, asked)) <= 1


@settings(max_examples=80)
@given(tables(1 << 20), st.integers(0, 5 << 14), CHUNKS, st.integers(1, 70), st.booleans(), st.integers(0, 500))
def test_the_blocks_ask_for_the_first_bytes_of_the_matrices(
    matrices: list[Matrix], units: int, chunk: int, blocks: int, columns: bool, head: int
) -> None:
    depth = units * ALIGNMENT
    head = min(head * ALIGNMENT, matrices[0].row_bytes) if columns else 0
    asked = [list(walk(matrices, depth, chunk, block, blocks, columns=columns, head=head)) for block in range(blocks)]
    check(asked, matrices, depth, chunk, columns, head)


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

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        words = [v for m in matrices for v in (m.address, m.row_bytes | m.rows << 32)]
        self._words = [each & 0xFFFFFFFF for v in words for each in (v, v >> 32)]
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
    text = compile_for(architecture(arch), kernels.launch_prefetch, Int64(0), *[Int32(1)] * 7, stream).artifacts.PTX
    assert isinstance(text, str)
    return text


def run(
    arch: str,
    matrices: Sequence[Matrix],
    depth_mib: int,
    chunk: int,
    blocks: int,
    *,
    begin: int = 0,
    columns: bool = False,
    head: int = 0,
    delay: int = 0,
) -> list[Memory]:
    """Run every thread of every block; by block what it asked for."""
    from ptx_machine import kernel_of

    kernel = kernel_of(compiled(arch))
    arguments = (0, begin, len(matrices), depth_mib, chunk, int(columns), head, delay)
    found = []
    for block in range(blocks):
        memory = Memory(matrices)
        for thread in (0, 1, 31):
            asked = len(memory.asked)
            for _ in kernel(memory, arguments, thread, block, blocks):
                assert len(memory.asked) < 10**6
            assert thread == 0 or len(memory.asked) == asked
        found.append(memory)
    return found


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@settings(max_examples=15, deadline=None)
@given(
    tables(3 << 20),
    st.integers(1, 3),
    st.sampled_from([1024, 4096, 16384]),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 500),
    st.integers(0, 1),
)
def test_the_compiled_kernel_asks_for_the_same(
    arch: str, matrices: list[Matrix], depth_mib: int, chunk: int, blocks: int, columns: bool, head: int, begin: int
) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    begin = min(begin, len(matrices) - 1)
    walked = matrices[begin:]
    head = min(head * ALIGNMENT, walked[0].row_bytes) if columns else 0
    found = run(arch, matrices, depth_mib, chunk, blocks, begin=begin, columns=columns, head=head)
    asked = [memory.asked for memory in found]
    depth = depth_mib * MIB
    assert asked == [list(walk(walked, depth, chunk, b, blocks, columns=columns, head=head)) for b in range(blocks)]
    check(asked, walked, depth, chunk, columns, head)


@pytest.mark.parametrize("columns", [False, True])
def test_ranges_may_be_gigabytes_and_lie_anywhere(columns: bool) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    matrices = [Matrix((1 << 47) - 16, 1, 16), Matrix(0x7F_FFFF_F000, 3 << 10, 1 << 20)]
    asked = [memory.asked for memory in run("sm_90a", matrices, 1024, 65536, 3, columns=columns)]
    assert asked == [list(walk(matrices, 1024 * MIB, 65536, block, 3, columns=columns)) for block in range(3)]


def test_nothing_is_asked_for_before_the_delay_is_over() -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    for delay in (0, 640, 5000):
        (memory,) = run("sm_90a", [Matrix(1 << 40, 16, MIB // 16)], 1, 65536, 1, delay=delay)
        assert memory.first_at is not None
        assert delay <= memory.first_at - 1_000 <= delay + 100
