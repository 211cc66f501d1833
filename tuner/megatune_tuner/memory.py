"""How much memory processes have taken."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """Of this process, or another one; 0 for one that is gone, and where the system does not say."""
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:  # only Linux has it
        return 0
