"""What the driver's library, NVML, knows of this process's GPU and torch does not: its place, its id, its NVLinks.

A plan's target is told alike: a GPU must not look like another one where it serves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from typing import NamedTuple

MAX_LINKS = 18
"""``NVML_NVLINK_MAX_LINKS``."""
_TO_A_GPU = 0
"""``NVML_NVLINK_DEVICE_TYPE_GPU``."""

Place = tuple[int, int, int]
"""Domain, bus and device on the PCI bus."""


class Gpu(NamedTuple):
    """A GPU as the driver has it."""

    driver: str
    """Version of the driver."""
    device_id: str
    """PCI device id, four hexadecimal digits."""
    place: Place


class _Pci(ctypes.Structure):
    """``nvmlPciInfo_t``."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_and_vendor", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )

    @property
    def place(self) -> Place:
        return (self.domain, self.bus, self.device)


_Call = Callable[..., int]


def gpu(uuid: str) -> Gpu:
    """
    :param uuid: of the GPU, as torch has it.
    :raises OSError, RuntimeError: where the driver cannot be asked.
    """
    with _nvml() as call:
        text, pci = ctypes.create_string_buffer(96), _Pci()
        _good(call, "nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        _good(call, "nvmlDeviceGetPciInfo_v3", _handle(call, uuid), ctypes.byref(pci))
        # The vendor is in the lower half of the word.
        return Gpu(text.value.decode(), f"{pci.device_and_vendor >> 16:04x}", pci.place)


def links_to(uuid: str, peers: Sequence[Place]) -> int:
    """NVLinks that lead to the peer that has the fewest, on their own or through a switch.

    :param uuid: of this process's GPU.
    :param peers: at least one, on this machine.
    :raises OSError, RuntimeError: where the driver cannot be asked.
    """
    with _nvml() as call:
        handle = _handle(call, uuid)
        return min(sum(_leads(call, handle, link, peer) for link in range(MAX_LINKS)) for peer in peers)


def _leads(call: _Call, handle: ctypes.c_void_p, link: int, peer: Place) -> bool:
    number, word, pci = ctypes.c_uint(link), ctypes.c_uint(), _Pci()
    # A GPU that has no such link answers with an error.
    if call("nvmlDeviceGetNvLinkState", handle, number, ctypes.byref(word)) or not word.value:
        return False
    # A virtual machine may hide where a link leads; a switch leads to every GPU.
    if call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number, ctypes.byref(word)) or word.value != _TO_A_GPU:
        return True
    hidden = call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, number, ctypes.byref(pci))
    return bool(hidden) or pci.place == peer


@contextmanager
def _nvml() -> Iterator[_Call]:
    library = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: Any) -> int:
        return int(getattr(library, name)(*arguments))

    _good(call, "nvmlInit_v2")
    try:
        yield call
    finally:
        call("nvmlShutdown")


def _good(call: _Call, name: str, *arguments: Any) -> None:
    error = call(name, *arguments)
    if error:
        raise RuntimeError(f"{name} answers {error}")


def _handle(call: _Call, uuid: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _good(call, "nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle
