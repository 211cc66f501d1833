"""A config of several kernels on one GPU: how it is enqueued, and its parts alone. Imports cuda.core.

Everything goes to the streams themselves: while the first one is captured, whatever waits for its events is captured
with it, and what it waits for at the end is joined to it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cache
from functools import partial
from typing import Any

from cuda.core import launch

from megatune_kernels.buffers import ChainBuffers
from megatune_kernels.buffers import Windows
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.parts import Record
from megatune_kernels.parts import Run
from megatune_kernels.parts import Wait
from megatune_kernels.parts import schedule
from megatune_tuner.workers.gpu_launch import load

Launcher = Callable[[Any, int], None]
"""Enqueues one kernel on a stream, over one of several sets of addresses."""
ALONE_LAUNCHES = 32
"""The fewest of a part that is timed alone."""
WINDOW_SHARE = 4
"""The probe reads pieces of at most one in so many of the L2, which hold in it whatever else is there."""
MOST_LAUNCHES = 4096
"""Of a part so small that more of them would read all once, it is not known how long it takes cold."""
HOT_SHARE = 2
"""Weights of more than one in so many of the L2 may not be in it whole when they are read again."""


@dataclass(frozen=True)
class Alone:
    """Launches of one part and nothing else."""

    name: str
    key: Hashable
    """Equal for launches that take equally long."""
    launches: int
    enqueue: Callable[[], None]


@dataclass(frozen=True)
class Probe:
    """A part that reads what has to be cold: in turns, so that it is, and the same piece again and again."""

    cold: Alone
    hot: Alone
    bytes: int
    """Of a piece."""


class Chain:
    """The kernels of a config, loaded, over operands that are there."""

    def __init__(
        self,
        parts: Sequence[Part],
        artifacts: Sequence[Artifact],
        buffers: ChainBuffers,
        streams: Sequence[Any],
        make_event: Callable[[], Any],
        device_id: int,
        numbers: Callable[[str, int], tuple[int, ...]] | None = None,
        check: Callable[[Any, Any, Launch], None] | None = None,
    ) -> None:
        """
        :param streams: stream 0, and as many others as the parts name.
        :param numbers: in a group, what follows a part's scalars at each copy.
        :param check: looks at a kernel whose blocks wait for one another, how it is launched and its shape.
        :raises MegatuneError: for parts that cannot be scheduled.
        :raises RuntimeError: in the driver's words, when it refuses a kernel.
        """
        self._parts = {part.name: part for part in parts}
        self._artifacts = {part.name: artifact for part, artifact in zip(parts, artifacts, strict=True)}
        self._buffers = buffers
        self._streams = streams
        self._device_id = device_id
        self._check = check
        self._steps = schedule(parts)
        self._events = {step.event: make_event() for step in self._steps if isinstance(step, Record)}
        self._launches = {
            part.name: self._launcher(
                part.name,
                part.workload,
                [buffers.part_pointers(part.name, copy) for copy in range(buffers.copies)],
                [numbers(part.name, copy) for copy in range(buffers.copies)] if numbers is not None else (),
            )
            for part in parts
        }

    def enqueue(self, _: Any, copy: int) -> None:
        """Enqueue the whole chain over one set of operands."""
        for step in self._steps:
            match step:
                case Run(part):
                    self._launches[part.name](self._streams[part.stream], copy)
                case Record(stream, event):
                    self._streams[stream].record(self._events[event])
                case Wait(stream, event):
                    self._streams[stream].wait(self._events[event])

    def alone(self, l2_bytes: int) -> list[Alone]:
        """Each part alone; those that read weights cold, and hot where the L2 holds them.

        Of a warm job, whose operands do not rotate, hot only.
        """
        found = []
        for name in self._parts:
            windows = self._buffers.windows(name)
            if windows is None:
                copies = list(range(self._buffers.copies))
                found.append(self._repeated(name, name, partial(self._launches.__getitem__, name), copies))
                continue
            run = self._over(name, windows)
            if self._buffers.copies > 1 and len(windows.pointers) <= MOST_LAUNCHES:
                found.append(self._repeated(f"{name} cold", name, run, range(len(windows.pointers))))
            if windows.bytes * HOT_SHARE <= l2_bytes:
                found.append(self._repeated(f"{name} hot", name, run, [0]))
        return found

    def probe(self, l2_bytes: int) -> Probe | None:
        """The part with the most to read, in pieces that the L2 holds; None where operands do not rotate, or are
        read in larger pieces alone."""
        if self._buffers.copies == 1:
            return None
        found = {name: self._buffers.windows(name, l2_bytes // WINDOW_SHARE) for name in self._parts}
        reading = {name: windows for name, windows in found.items() if windows is not None}
        if not reading:
            return None
        name, windows = max(reading.items(), key=lambda item: item[1].bytes)
        # One that overlaps the next reads it while it waits, which hides where the bytes come from.
        run = self._over(name, windows, overlapping=False)
        return Probe(
            self._repeated("probe cold", name, run, range(len(windows.pointers))),
            self._repeated("probe hot", name, run, [0]),
            windows.bytes,
        )

    def _over(self, part: str, windows: Windows, *, overlapping: bool = True) -> Callable[[], Launcher]:
        # Loaded when it is launched, which it is not where its time is known.
        return cache(lambda: self._launcher(part, windows.workload, windows.pointers, overlapping=overlapping))

    def _repeated(self, name: str, part: str, run: Callable[[], Launcher], turns: Sequence[int]) -> Alone:
        rounds = math.ceil(ALONE_LAUNCHES / len(turns))

        def enqueue() -> None:
            for _ in range(rounds):
                for turn in turns:
                    run()(self._streams[0], turn)

        key = (name, self._artifacts[part].key, self._parts[part].launch())
        return Alone(name, key, rounds * len(turns), enqueue)

    def _launcher(
        self,
        name: str,
        workload: Workload,
        pointers: Sequence[tuple[int, ...]],
        numbers: Sequence[tuple[int, ...]] = (),
        overlapping: bool = True,
    ) -> Launcher:
        """What enqueues the part's kernel on a stream, over one of several sets of addresses.

        :param overlapping: whether a launch may start before its predecessor has ended, where the part's do.
        """
        shape = self._parts[name].launch(workload)
        if not overlapping:
            shape = replace(shape, programmatic=False)
        kernel, config = load(self._artifacts[name], shape, self._device_id)
        if shape.resident and self._check is not None:
            self._check(kernel, config, shape)
        scalars = [ctypes.c_int32(value) for value in shape.scalars]
        arguments = [
            (*addresses, *scalars, *(ctypes.c_int32(value) for value in running))
            for addresses, running in zip(pointers, numbers or [()] * len(pointers), strict=True)
        ]

        def enqueue(stream: Any, turn: int) -> None:
            launch(stream, config, kernel, *arguments[turn])

        return enqueue
