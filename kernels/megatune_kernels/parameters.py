"""The parameters of an entry that takes more than pointers and integers: how they lie in memory, and whether they do.

A kernel of another runtime is handed tensors and copy atoms. A tensor becomes a structure of its address, its dynamic
sizes and its dynamic strides, an atom 8 bytes that nobody reads. What an adapter believes of them is compared with what
the compiler made of it, in the code that is about to be launched, before it is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from megatune_kernels.errors import Unknown

Kind = Literal["pointer", "int32", "int64", "hidden"]
_CODES = {"pointer": "Q", "int32": "i", "int64": "q", "hidden": "q"}
_KPARAM_INFO = 0x17
_SIZED = 4
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Field:
    """One value inside a parameter."""

    kind: Kind
    value: int = 0
    """Of a pointer its place among the operands' addresses, of an integer itself; what is hidden is 8 bytes of 0."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry: fields in their order, each aligned as C aligns it."""

    fields: tuple[Field, ...]

    @property
    def _layout(self) -> struct.Struct:
        codes = [_CODES[field.kind] for field in self.fields]
        # "0Q" pads the end as a structure that holds 8 bytes is padded.
        return struct.Struct("@" + "".join(codes) + ("0Q" if {*codes} & {"Q", "q"} else ""))

    @property
    def size(self) -> int:
        """Bytes."""
        return self._layout.size

    @property
    def alignment(self) -> int:
        return 4 if all(field.kind == "int32" for field in self.fields) else 8

    @property
    def reads(self) -> dict[int, int]:
        """Bytes of each field that a kernel may read, by its offset."""
        found, format_ = {}, "@"
        for field in self.fields:
            code = _CODES[field.kind]
            size = struct.calcsize(f"={code}")
            format_ += code
            if field.kind != "hidden":
                found[struct.calcsize(format_) - size] = size
        return found

    def pack(self, pointers: Sequence[int]) -> bytes:
        """The parameter's bytes over one set of operands."""
        return self._layout.pack(
            *(pointers[field.value] if field.kind == "pointer" else field.value for field in self.fields)
        )


@dataclass(frozen=True)
class Placed:
    """One parameter as the code has it, in bytes."""

    offset: int
    bytes: int


def places(parameters: Sequence[Parameter]) -> tuple[Placed, ...]:
    """Where the parameters of an entry lie, one behind the other."""
    found, at = [], 0
    for parameter in parameters:
        at += -at % parameter.alignment
        found.append(Placed(at, parameter.size))
        at += parameter.size
    return tuple(found)


def compiled_places(cubin: bytes, entry: str) -> tuple[Placed, ...]:
    """Where the parameters of a kernel lie, read from the records ``.nv.info.ENTRY`` of its code.

    :raises Unknown: when the code has no such kernel.
    """
    for name, content in sections(cubin):
        if name == f".nv.info.{entry}":
            records = [struct.unpack_from("<IHHI", each) for each in attributes(content, _KPARAM_INFO)]
            # The size is the upper 14 bits of the last word.
            return tuple(Placed(offset, word >> 18) for _, _, offset, word in sorted(records, key=lambda r: r[1]))
    raise Unknown(f"the compiled code has no kernel {entry}")


def check_compiled(parameters: Sequence[Parameter], cubin: bytes, entry: str) -> None:
    """See that a kernel takes the parameters that it is about to be given.

    :raises Unknown: when it takes others, naming the first that differs.
    """
    believed, found = places(parameters), compiled_places(cubin, entry)
    if len(believed) != len(found):
        raise Unknown(f"the kernel takes {len(found)} parameters, and its adapter knows {len(believed)} of them")
    for number, (one, other) in enumerate(zip(believed, found, strict=True)):
        if one != other:
            raise Unknown(
                f"parameter {number} of the kernel is {other.bytes} bytes at {other.offset}, and its adapter knows "
                f"{one.bytes} bytes at {one.offset}"
            )


_LOAD = re.compile(
    r"ld\.param(?:\.v(?P<many>[24]))?\.[a-z]+(?P<bits>\d+)\s[^\[]*\[\S+_param_(?P<number>\d+)(?:\+(?P<at>\d+))?\]"
)
_PARAMETER = re.compile(r"_param_\d+")


def check_reads(parameters: Sequence[Parameter], ptx: str) -> None:
    """See that a kernel reads of its parameters what lies there: an address where one is, a size where one is.

    :raises Unknown: when it reads across fields, what nobody knows of, or in a way that cannot be followed.
    """
    for line in ptx.splitlines():
        if _PARAMETER.search(line) and ".param " not in line and not _LOAD.search(line):
            raise Unknown(f"the kernel uses its parameters in a way that its adapter cannot follow: {line.split()[0]}")
    for load in _LOAD.finditer(ptx):
        number, at, size = int(load["number"]), int(load["at"] or 0), int(load["bits"]) // 8
        for each in range(int(load["many"] or 1)):
            place = at + each * size
            if number >= len(parameters) or parameters[number].reads.get(place) != size:
                raise Unknown(
                    f"the kernel reads {size} bytes at {place} of parameter {number}, where its adapter knows no such "
                    "value"
                )


def sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of an ELF file."""
    offset = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION_HEADER.unpack_from(cubin, offset + i * size) for i in range(count)]
    for header in headers:
        start = headers[names_at][4] + header[0]
        yield cubin[start : cubin.index(b"\0", start)].decode(), cubin[header[4] : header[4] + header[5]]


def attributes(content: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the records of one attribute in a section ``.nv.info``."""
    at = 0
    while at < len(content):
        kind, attribute, length = struct.unpack_from("<BBH", content, at)
        at += 4
        if kind == _SIZED:
            if attribute == wanted:
                yield content[at : at + length]
            at += length
