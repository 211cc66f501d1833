"""Stopping a campaign cleanly."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from types import TracebackType
from typing import Any
from typing import Self


class Stop:
    """Whether a campaign was asked to stop. As a context it listens to SIGINT and SIGTERM.

    The first signal asks: the current measurement ends and is kept. The second interrupts at once. Signals reach the
    main thread alone; entered in another, it listens to none.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
