"""What a measurement holds for: the architectures that kernels are compiled for, and the target fingerprint."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from functools import cached_property
from typing import Any

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError

RESERVED_SHARED_BYTES = 1024
REGISTERS_AT_A_TIME = 8
"""Registers of a thread are given out in so many."""


@dataclass(frozen=True)
class Architecture:
    """What the compiler and the constraints need to know of a GPU family.

    Limits are from the CUDA C++ programming guide, table "Technical Specifications per Compute Capability".
    """

    name: str
    """As the compiler spells it, e.g. ``sm_90a``."""
    shared_bytes_a_block: int
    registers_a_thread: int = 255
    cluster_blocks: int = 8
    """Portable cluster size limit."""
    shared_bytes_a_multiprocessor: int = 228 * 1024
    """Of which every block takes ``RESERVED_SHARED_BYTES`` more than it asks for."""
    registers_a_multiprocessor: int = 1 << 16
    l2_bytes: int = 0
    """Of one GPU of the family; 0 where no GPU is named."""
    sms: int = 0
    """Multiprocessors, likewise."""

    def blocks_a_multiprocessor(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that a multiprocessor holds at once.

        :param registers: of a thread.
        """
        given = -(-registers // REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
        return min(
            self.registers_a_multiprocessor // (given * threads),
            self.shared_bytes_a_multiprocessor // (shared_bytes + RESERVED_SHARED_BYTES),
        )


ARCHITECTURES = {
    arch.name: arch
    for arch in (
        Architecture("sm_90a", shared_bytes_a_block=227 * 1024),
        Architecture("sm_100a", shared_bytes_a_block=227 * 1024),
        Architecture("sm_103a", shared_bytes_a_block=227 * 1024),
    )
}


def architecture(name: str) -> Architecture:
    """The architecture of that name.

    :raises MegatuneError: when no kernel is built for it, with the names that are.
    """
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise MegatuneError(f"no kernels for architecture {name!r}; allowed: {', '.join(ARCHITECTURES)}") from None


@dataclass(frozen=True)
class Hardware:
    """The part of a target that is bought."""

    gpu: str
    arch: str
    device_id: str
    """PCI device id, hexadecimal, e.g. ``2335``."""
    sms: int
    l2_bytes: int
    memory_bytes: int
    links: str
    """How the GPUs of the world reach one another: ``none`` for one GPU, else e.g. ``nvlink``."""
    world: int = 1


def architecture_of(hardware: Hardware) -> Architecture:
    """The architecture of a GPU, with what that GPU adds to it.

    :raises MegatuneError: as ``architecture``.
    """
    return replace(architecture(hardware.arch), l2_bytes=hardware.l2_bytes, sms=hardware.sms)


@dataclass(frozen=True)
class Toolchain:
    """The part of a target that is installed."""

    driver: str
    cuda: str
    dsl: str
    """Version of nvidia-cutlass-dsl that compiled the artifacts."""
    torch: str
    """Version of torch whose cuBLAS is the baseline."""


@dataclass(frozen=True)
class Target:
    """Fingerprint of what was measured on; measurements of different targets are never compared."""

    hardware: Hardware
    toolchain: Toolchain

    @cached_property
    def digest(self) -> str:
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Target:
        """:raises MegatuneError: when fields are missing, unknown or of another type."""
        try:
            made = Target(Hardware(**value["hardware"]), Toolchain(**value["toolchain"]))
            for part in (made.hardware, made.toolchain):
                for field in fields(part):
                    found = getattr(part, field.name)
                    if type(found).__name__ != field.type:
                        raise TypeError(f"{field.name} is {found!r}, no {field.type}")
            return made
        except (KeyError, TypeError) as error:
            raise MegatuneError(f"not a target: {error}; expected the fields of Hardware and Toolchain") from error

    def __str__(self) -> str:
        hardware, toolchain = self.hardware, self.toolchain
        return f"{hardware.gpu} ({hardware.sms} SMs, driver {toolchain.driver}, CUDA {toolchain.cuda})"
