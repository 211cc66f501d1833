"""Parameters of an entry: how they lie, against ctypes; and that a kernel which has others is refused."""

from __future__ import annotations

import ctypes
import struct

import pytest

from megatune_kernels.errors import Unknown
from megatune_kernels.parameters import Field
from megatune_kernels.parameters import Parameter
from megatune_kernels.parameters import Placed
from megatune_kernels.parameters import check_compiled
from megatune_kernels.parameters import check_reads
from megatune_kernels.parameters import compiled_places
from megatune_kernels.parameters import places

X = Parameter((Field("pointer", 0), Field("int32", 7168), Field("int64", -2)))
W = Parameter((Field("pointer", 1), Field("int32", 2112), Field("int32", 7168), Field("int64", 7168)))
K = Parameter((Field("int32", 7168),))
HIDDEN = Parameter((Field("hidden"),))
ALL = (X, W, K, HIDDEN)


class Tensor(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("size", ctypes.c_int32), ("stride", ctypes.c_int64))


def test_a_parameter_lies_as_c_lays_it() -> None:
    assert X.pack((0xABC0, 0)) == bytes(Tensor(0xABC0, 7168, -2))
    assert X.size == ctypes.sizeof(Tensor) == 24
    assert W.pack((0, 0xDEF0)) == struct.pack("<Qiiq", 0xDEF0, 2112, 7168, 7168)
    assert (K.size, HIDDEN.size, Parameter((Field("pointer", 0), Field("int32", 1))).size) == (4, 8, 16)
    assert X.reads == {0: 8, 8: 4, 16: 8}
    assert HIDDEN.reads == {}


def test_parameters_lie_one_behind_the_other() -> None:
    assert places(ALL) == (Placed(0, 24), Placed(24, 24), Placed(48, 4), Placed(56, 8))


def cubin_of(sizes: dict[int, tuple[int, int]], entry: str = "entry") -> bytes:
    """A file with the one section that is read, and its names."""
    records = b"".join(
        struct.pack("<BBH", 4, 0x17, 12) + struct.pack("<IHHI", 0, number, offset, size << 18 | 0x1F000)
        for number, (offset, size) in sorted(sizes.items(), reverse=True)
    )
    content = struct.pack("<BBH", 3, 0x19, 64) + records
    names = f"\0.nv.info.{entry}\0.shstrtab\0".encode()
    header = bytearray(64)
    at = 64 + len(content) + len(names)
    struct.pack_into("<Q", header, 0x28, at)
    struct.pack_into("<HHH", header, 0x3A, 64, 2, 1)
    sections = [(1, 64, len(content)), (names.index(b".shstrtab"), 64 + len(content), len(names))]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0) for name, offset, size in sections
    )
    return bytes(header) + content + names + table


GOOD = {0: (0, 24), 1: (24, 24), 2: (48, 4), 3: (56, 8)}


def test_parameters_are_those_of_the_code() -> None:
    assert compiled_places(cubin_of(GOOD), "entry") == places(ALL)
    check_compiled(ALL, cubin_of(GOOD), "entry")


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({**GOOD, 4: (64, 4)}, "the kernel takes 5 parameters, and its adapter knows 4 of them"),
        ({0: (0, 24), 1: (24, 24), 2: (48, 4)}, "the kernel takes 3 parameters"),
        ({**GOOD, 1: (24, 16)}, "parameter 1 of the kernel is 16 bytes at 24, and its adapter knows 24 bytes at 24"),
        ({**GOOD, 2: (48, 8)}, "parameter 2 of the kernel is 8 bytes at 48"),
    ],
)
def test_code_with_other_parameters_is_refused(sizes: dict[int, tuple[int, int]], says: str) -> None:
    with pytest.raises(Unknown, match=says):
        check_compiled(ALL, cubin_of(sizes), "entry")


def test_code_without_the_kernel_is_refused() -> None:
    with pytest.raises(Unknown, match="no kernel other"):
        check_compiled(ALL, cubin_of(GOOD), "other")


def load(kind: str, place: str) -> str:
    return f"\tld.param.{kind} \t%r1, [kernel_x_1_param_{place}];\n"


def test_reads_are_of_values_that_are_there() -> None:
    check_reads(ALL, load("b64", "0") + load("u32", "0+8") + load("b64", "1+16") + load("b32", "2"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (load("b64", "0+8"), "8 bytes at 8 of parameter 0"),
        (load("b32", "0+16"), "4 bytes at 16 of parameter 0"),
        (load("b64", "3"), "8 bytes at 0 of parameter 3"),
        (load("b32", "4"), "4 bytes at 0 of parameter 4"),
        ("\tld.param.v2.b32 {%r1, %r2}, [kernel_param_1+12];\n", "4 bytes at 16 of parameter 1"),
        # Ways of reading that nobody looks into.
        ("\tmov.b64 \t%rd1, kernel_param_0;\n", "in a way that its adapter cannot follow: mov.b64"),
        ("\tld.param::entry.b64 \t%rd1, [kernel_param_0+8];\n", "cannot follow: ld.param::entry.b64"),
    ],
)
def test_reads_across_values_are_refused(line: str, says: str) -> None:
    with pytest.raises(Unknown, match=says):
        check_reads(ALL, load("b64", "0") + line)
