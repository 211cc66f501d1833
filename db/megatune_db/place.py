"""Where a process runs, so that others on the same machine can tell at once when it is gone."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")


def here() -> str:
    """This process: host, process id, and what tells it from others of that id: boot, namespace and start."""
    return _here(os.getpid())


@lru_cache(maxsize=4)
def _here(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{_machine()}:{_started(pid) or ''}"


def readable(place: str) -> str:
    """The place in words, e.g. ``process 4711 on node3``."""
    host, pid, *_ = [*place.split(":"), "", ""]
    return f"process {pid} on {host}" if pid else "an unknown process"


def process(place: str) -> int | None:
    """The id of the process where signals from here reach it; None for one of another machine, or that is gone."""
    _, pid, machine, started = [*place.rsplit(":", 3), "", "", "", ""][:4]
    return int(pid) if started and machine == _machine() and _started(int(pid)) == started else None


def is_gone(place: str) -> bool:
    """Whether the process has certainly ended; False for those of other machines, and where it cannot be told."""
    try:
        _, pid, machine, started = place.rsplit(":", 3)
    except ValueError:
        return False
    if not started or machine != _machine():
        return False
    return _started(int(pid)) != started


@lru_cache(maxsize=1)
def _machine() -> str:
    """Boot and namespace of process ids; empty where the system does not say."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink().name.strip('pid:[]')}"
    except OSError:  # only Linux has these
        return ""


def _started(pid: int) -> str | None:
    """When the process started, in ticks since boot; None for one that is not there or only waits to be reaped."""
    try:
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
