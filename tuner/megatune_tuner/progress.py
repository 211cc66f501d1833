"""What a person sees of a campaign while it runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import Self
from typing import TextIO

from megatune_db.records import Status
from megatune_kernels.operator import Workload

PLAIN_EVERY_S = 5.0
"""Seconds between lines where there is no terminal."""
PACE_TRIALS = 5
PACE_S = 10.0
"""Trials and seconds before a pace is worth saying: the first trials also wait for a compiler and a device to heat."""


class Progress:
    """Counts what was measured. This one shows nothing; a campaign enters it as a context."""

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self.failures: Counter[Status] = Counter()
        self.latest = ""
        self._taken = 0
        self._first_at = 0.0

    def expect(self, total: int | None) -> None:
        """How many trials there are to make, as far as is known; None when only time limits them."""
        self.total = total
        self.show()

    def skip(self, count: int) -> None:
        """So many trials were made by an earlier process."""
        self.done += count

    def measured(self, workload: Workload, status: Status, best_us: float | None) -> None:
        """A trial was measured and kept; ``best_us`` is the fastest of its workload so far."""
        self.done += 1
        self._taken += 1
        if self._taken == 1:
            self._first_at = time.monotonic()
        if status is not Status.OK:
            self.failures[status] += 1
        best = f", best {best_us:.2f} µs" if best_us is not None else ""
        self.latest = f"{workload}{best}"
        self.show()

    def note(self, text: str) -> None:
        """Something that a person should see at once."""

    def show(self) -> None:
        """Bring the display up to date."""

    @property
    def failed(self) -> str:
        """Failures by status, in words; empty without any."""
        return ", ".join(f"{count} {status}" for status, count in sorted(self.failures.items()))

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the pace so far; None while that is not known."""
        since_first_s = time.monotonic() - self._first_at
        if self.total is None or self._taken <= PACE_TRIALS or since_first_s < PACE_S:
            return None
        return max(0, self.total - self.done) * since_first_s / (self._taken - 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the display down."""


class PlainProgress(Progress):
    """A line every few seconds, for logs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._next = 0.0

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def show(self) -> None:
        now = time.monotonic()
        if now < self._next or not self.latest:
            return
        self._next = now + PLAIN_EVERY_S
        parts = [f"{self.done}/{self.total}" if self.total is not None else str(self.done), self.latest]
        if self.failures:
            parts.append(self.failed)
        if self.left_s is not None:
            parts.append(f"{duration(self.left_s)} left")
        print("; ".join(parts), file=self._stream, flush=True)


class RichProgress(Progress):
    """A bar on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn
        from rich.progress import MofNCompleteColumn
        from rich.progress import Progress as Bar
        from rich.progress import TextColumn
        from rich.progress import TimeElapsedColumn
        from rich.table import Column

        # The counts keep their width, and what is told beside them takes what is left of the line.
        self._bar = Bar(
            BarColumn(bar_width=12, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[news]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=Console(stderr=True),
            expand=True,
        )
        self._escape = escape
        self._task = self._bar.add_task("", total=None, left="", news="")

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def show(self) -> None:
        left = "" if self.left_s is None else f"{duration(self.left_s)} left"
        news = self._escape(self.latest)
        if self.failures:
            news = f"[yellow]{self.failed}[/yellow] {news}"
        self._bar.update(self._task, total=self.total, completed=self.done, left=left, news=news)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def duration(seconds: float) -> str:
    """Seconds in words, e.g. ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
