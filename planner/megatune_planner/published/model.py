"""What is said of a published entry, as data."""

from __future__ import annotations

from typing import Literal

from megatune_planner.published.units import Span
from megatune_planner.published.units import Unit
from megatune_planner.schema import Part


class Winner(Part):
    """A run of published places with one winner; what ties with the fastest goes on winning."""

    mode: str
    """Who wins."""
    lo: int
    """First published place inside."""
    hi: int | None
    """Last published place inside; None: without end."""


class PublishedCrossover(Part):
    """Where one of two modes gives way to the other."""

    kind: Literal["point", "interval", "contested", "never"]
    """As of a plan's crossovers."""
    below: str
    """Faster at the small end."""
    above: str
    """The other one."""
    faster: str | None
    """Of ``never``: which is nowhere slower; None where the two tie throughout, and for the other kinds."""
    measured: bool
    """False where it follows from constants in code alone."""
    unit: Unit
    """Of ``lo``, ``hi``, ``estimate``, ``changes``, ``tied`` and ``unmeasured``."""
    lo: int
    """The last place before any change of sides; of ``never`` the first published one."""
    hi: int | None
    """The first place after every change; of ``never`` the last published one; None where the source names none."""
    first_place: int
    """The smallest place at which both are known."""
    last_place: int
    """The largest."""
    estimate: float | None
    """Where the two are equally fast, for a single change whose latencies are known."""
    changes: tuple[tuple[int, int | None], ...]
    """Each change of sides."""
    tied: tuple[int, ...]
    """Places inside where the difference is within the noise."""
    unmeasured: tuple[tuple[int, int | None], ...]
    """Places inside the changes of which nothing was published."""
    suspect: str
    """How a curve steps at a change; empty where none does."""
    tokens: Span | None
    """The same in tokens; None where the width or the dtype is not known."""
    payload_bytes: Span | None
    """The same in bytes of one rank's partial."""
    traffic_bytes: Span | None
    """The same in bytes of one-shot traffic; None where the world is not known."""


class Chosen(Part):
    """What the source's code or text chose."""

    label: str
    """As the source calls it."""
    mode: str | None
    """Which mode serves; None where the label names none."""
    group: str
    """What tells it from the entry's others."""
    world: int | None
    """Ranks."""
    unit: Unit
    """Of ``first`` and ``last``."""
    first: int | None
    """None: from the smallest on."""
    last: int | None
    """None: without end."""
    tokens: Span | None
    """The same in tokens."""
    payload_bytes: Span | None
    """The same in bytes of one rank's partial."""
    traffic_bytes: Span | None
    """The same in bytes of one-shot traffic."""
    verdict: str
    """What the published measurements say of it; empty where there are none for it."""


class Answer(Part):
    """One group of an entry: figures of one world and shape."""

    group: str
    """What tells it from the entry's others; empty for the only one."""
    world: int | None
    """Ranks; None where the source does not say."""
    width: int | None
    """Elements of a row; None where the source does not say."""
    winners: tuple[Winner, ...]
    """Who is the fastest of all where."""
    crossovers: tuple[PublishedCrossover, ...]
    """Of every two modes that are a choice."""


class Published(Part):
    """What follows from one entry."""

    id: str
    """Of the entry."""
    source: str | tuple[str, ...]
    """Where it was published."""
    hardware: str | None
    """As the source says it."""
    dtype: str | None
    """As the source says it."""
    provenance: Literal["imported"] = "imported"
    """Of every figure."""
    constant: bool
    """Whether the source holds constants in code, and no measurement."""
    answers: tuple[Answer, ...]
    """By group."""
    chosen: tuple[Chosen, ...]
    """Limits and ranges that the source states."""
    remarks: tuple[str, ...] = ()
    """What could not be answered, and why."""
