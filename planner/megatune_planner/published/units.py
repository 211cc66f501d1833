"""In which unit a published figure counts, and what that is in tokens and bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from megatune_planner.schema import Part

Unit = Literal["tokens", "bytes", "elements", "traffic bytes", "other"]
"""``bytes`` are those of one rank's whole partial, ``traffic bytes`` those times the world."""

_MIB = 2**20
_ITEM_BYTES = (("mxfp8", None), ("bf16", 2), ("fp16", 2), ("half", 2), ("fp32", 4), ("fp8", 1))


@dataclass(frozen=True)
class Scale:
    """A unit, and how many of it one of the published is."""

    unit: Unit
    factor: float = 1.0

    def place(self, value: float) -> int:
        """A published place in whole units."""
        return round(value * self.factor)


class Span(Part):
    """From one place to another, and the estimate between the two."""

    lo: float | None
    """None: from the smallest on."""
    hi: float | None
    """None: without end, or nothing is known of it."""
    estimate: float | None = None
    """Where two curves meet."""


@dataclass(frozen=True)
class Where:
    """What has to be known to convert places; None where the source does not say."""

    world: int | None
    width: int | None
    item_bytes: int | None
    reduces: bool = True
    """Whether rows of ``width`` elements go from rank to rank: elsewhere their bytes mean nothing."""

    def payload_bytes(self, unit: Unit, place: float) -> float | None:
        """Bytes of one rank's partial; None where something for it is not known."""
        each: float | None = None
        if not self.reduces:
            return None
        if unit == "bytes":
            each = 1
        elif unit == "elements":
            each = self.item_bytes
        elif unit == "tokens" and self.width is not None and self.item_bytes is not None:
            each = self.width * self.item_bytes
        elif unit == "traffic bytes" and self.world is not None:
            each = 1 / self.world
        return None if each is None else place * each

    def tokens(self, unit: Unit, place: float) -> float | None:
        """Tokens; None where something for it is not known."""
        if unit == "tokens":
            return place
        payload = self.payload_bytes(unit, place)
        if payload is None or self.width is None or self.item_bytes is None:
            return None
        return round(payload / (self.width * self.item_bytes), 2)

    def traffic_bytes(self, unit: Unit, place: float) -> float | None:
        """Bytes of one-shot traffic; None where something for it is not known."""
        if unit == "traffic bytes":
            return place
        payload = self.payload_bytes(unit, place)
        return None if payload is None or self.world is None else payload * self.world

    def spans(self, unit: Unit, span: Span) -> dict[str, Span | None]:
        """The span in tokens, in bytes of a rank's partial and in bytes of one-shot traffic, as far as is known."""
        found: dict[str, Span | None] = {}
        for name in ("tokens", "payload_bytes", "traffic_bytes"):
            convert = getattr(self, name)
            ends = {end: None if at is None else convert(unit, at) for end, at in span.model_dump().items()}
            missing = any(at is not None and ends[end] is None for end, at in span.model_dump().items())
            found[name] = None if missing or ends["lo"] is ends["hi"] is None else Span(**ends)
        return found


def item_bytes(dtype: str | None) -> int | None:
    """Bytes of an element; None where the dtype is not known, or holds more than its elements."""
    for name, size in _ITEM_BYTES:
        if dtype is not None and name in dtype.lower():
            return size
    return None


def scale_of(text: str | None) -> Scale:
    """The scale of a unit as the sources' figures spell it, e.g. ``tokens``, ``MiB`` or ``bytes per rank``."""
    words = (text or "").lower()
    traffic = re.search(r"tokens\s*\*\s*hidden(\s*\*\s*2)?", words)
    size = _MIB if re.search(r"\bmi?b\b", words) else 1024 if re.search(r"\bki?b\b", words) else 1
    if traffic:
        return Scale("traffic bytes", size / (2 if traffic.group(1) else 1))
    if size > 1 and not words.startswith("element"):
        return Scale("bytes", size)
    if words.startswith("bytes"):
        return Scale("bytes")
    if words.startswith("element"):
        return Scale("elements")
    if re.match(r"(global |local )?(tokens|m\b)|s_q\b", words):
        return Scale("tokens")
    return Scale("other")
