"""How the kernels of a config are enqueued: on which streams, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Part

BEGIN = "begin"


@dataclass(frozen=True)
class Run:
    """Launch a part on its stream."""

    part: Part


@dataclass(frozen=True)
class Record:
    """Record an event behind what a stream has so far."""

    stream: int
    event: str


@dataclass(frozen=True)
class Wait:
    """Let what a stream gets from now on wait for an event."""

    stream: int
    event: str


Step = Run | Record | Wait


def schedule(parts: Sequence[Part]) -> tuple[Step, ...]:
    """The steps that enqueue a config: other streams fork off stream 0, and end joined to it.

    :raises MegatuneError: for two parts of one name, or one that waits for a part that is not before it.
    """
    streams: dict[str, int] = {}
    steps: list[Step] = []
    awaited = {name for part in parts for name in part.after}
    forked: set[int] = set()
    if any(part.stream and not part.after for part in parts):
        steps.append(Record(0, BEGIN))
    for part in parts:
        if part.name in streams or part.name == BEGIN:
            raise MegatuneError(f"part {part.name}: there are two of that name")
        for name in part.after:
            if name not in streams:
                raise MegatuneError(
                    f"part {part.name}: after {name}: there is no such part before it; there are "
                    f"{', '.join(streams) or 'none'}"
                )
        if part.stream and part.stream not in forked and not part.after:
            steps.append(Wait(part.stream, BEGIN))
        forked |= {part.stream} - {0}
        steps += [Wait(part.stream, name) for name in part.after if streams[name] != part.stream]
        steps.append(Run(part))
        if part.name in awaited:
            steps.append(Record(part.stream, part.name))
        streams[part.name] = part.stream
    for stream in sorted(forked):
        end = f"end of stream {stream}"
        steps += [Record(stream, end), Wait(0, end)]
    return tuple(steps)
