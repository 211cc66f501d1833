"""How threads of one process wake one another; between processes there is only looking again in a while."""

from __future__ import annotations

import threading
import time


class Bell:
    """Counts how often it rang."""

    def __init__(self) -> None:
        self._rang = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def ring(self) -> None:
        with self._rang:
            self._count += 1
            self._rang.notify_all()

    def wait(self, count: int, timeout_s: float) -> None:
        """Wait until it has rung so often in all, or the time is up."""
        until = time.monotonic() + timeout_s
        with self._rang:
            while self._count < count and (left_s := until - time.monotonic()) > 0:
                self._rang.wait(left_s)
