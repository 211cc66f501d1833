"""What a published entry's source chose: limits, ranges and route tables, whatever form its code gives them.

Each comes out as a mode (or a label, where no mode is meant) and the places from which to which it serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from megatune_planner.published.entries import Entry
from megatune_planner.published.entries import is_collective
from megatune_planner.published.entries import modes_of
from megatune_planner.published.units import Scale
from megatune_planner.published.units import Where
from megatune_planner.published.units import item_bytes
from megatune_planner.published.units import scale_of

MOST_WORLD = 72
"""A number above it is no number of ranks."""


@dataclass(frozen=True)
class Choice:
    """A mode serves from one place to another."""

    label: str
    """As the source calls it."""
    mode: str | None
    """Which of the entry's modes is meant; None where none is."""
    group: str
    """What tells this one from the entry's others, e.g. ``graph`` or ``ws=8``."""
    where: Where
    scale: Scale
    first: int | None
    """None: from the smallest on."""
    last: int | None
    """None: without end."""
    listed: bool = False
    """Whether it is one of a list that leaves nothing out."""


def is_listed(entry: Entry) -> bool:
    """Whether the source lists who serves place by place, or route by route."""
    return bool({"routes", "bands", "configs"} & set(entry.get("threshold_chosen") or ()))


def choices(entry: Entry) -> list[Choice]:
    """Everything that the source chose, as far as its form is known."""
    item = item_bytes(entry.get("dtype"))
    where = Where(entry.get("world_size"), entry.get("hidden_size"), item, is_collective(entry))
    scale = scale_of(entry.get("x_unit"))
    base = Choice("", None, "", where, scale, None, None, is_listed(entry))
    stated = entry.get("threshold_chosen")
    modes = modes_of(entry)
    if not isinstance(stated, Mapping):
        return []
    if "routes" in stated:
        return list(_routes(stated["routes"], base))
    if "bands" in stated:
        named = [{"mode": band["backend"], "first": band["m_lo"], "last": band["m_hi"]} for band in stated["bands"]]
        return [replace(base, label=each["mode"], **each) for each in named]
    if "configs" in stated:
        return list(_buckets(stated["configs"], base))
    if "value" in stated:
        return list(_value(stated, modes, base))
    return list(_leaves(stated, modes, base))


def _routes(routes: Sequence[Mapping[str, Any]], base: Choice) -> Iterator[Choice]:
    """Targets with the last place of each, inclusive."""
    first = 1
    for route in routes:
        last = route["upper_inclusive"]
        yield replace(base, label=route["target"], mode=route["target"], first=first, last=last)
        first = first if last is None else last + 1


def _buckets(configs: Mapping[str, Mapping[str, Any]], base: Choice) -> Iterator[Choice]:
    """Strategies by the places at which they were found; what lies in between was not looked at."""
    for group, buckets in configs.items():
        for place, chosen in buckets.items():
            strategy = chosen["strategy"] if isinstance(chosen, Mapping) else chosen
            at = base.scale.place(float(place))
            yield replace(base, label=strategy, mode=strategy, group=group, first=at, last=at)


def _value(stated: Mapping[str, Any], modes: Sequence[str], base: Choice) -> Iterator[Choice]:
    scale = scale_of(stated["unit"]) if "unit" in stated else base.scale
    where = base.where
    if scale.unit == "elements" and item_bytes(stated["unit"]) is not None:
        where = replace(where, item_bytes=item_bytes(stated["unit"]))
        scale = Scale("elements")  # "24576 elements (bf16) = 48 KiB" counts elements
    base = replace(base, scale=scale, where=where)
    ruled = list(_rule(stated.get("rule"), modes, base))
    mode = _default(modes)
    yield from ruled or [replace(base, label=mode or "value", mode=mode, last=scale.place(stated["value"]))]


_RULES = (
    re.compile(r"(?P<mode>[\w-]+) for tokens (?P<first>\d+)\.\.(?P<last>\d+)"),
    re.compile(r"(?P<mode>[\w-]+) (?P<first>\d+)\.\.(?P<last>\d+)"),
    re.compile(r"always (?P<mode>[\w-]+)"),
    re.compile(r"(?P<mode>[\w-]+) (?:for )?(?:M|tokens)?\s*<=\s*(?P<last>\d+)"),
    re.compile(r"(?P<mode>[\w-]+)<=(?P<last>\d+)"),
    re.compile(r"(?P<mode>[\w-]+) through (?:M=)?(?P<last>\d+)"),
    re.compile(r"(?P<mode>[\w-]+) from (?:local )?(?:M|tokens)\s*(?P<first>\d+)"),
)


def _rule(text: Any, modes: Sequence[str], base: Choice) -> Iterator[Choice]:
    """Sentences such as ``two_shot for tokens 33..64``; those that name no mode say nothing that can be used."""
    for part in str(text or "").split(","):
        for rule in _RULES:
            found = rule.search(part)
            mode = _mode(found["mode"], modes) if found else None
            if found and mode is not None:
                ends = {end: int(value) for end, value in found.groupdict().items() if end != "mode" and value}
                yield replace(base, label=found["mode"], mode=mode, first=ends.get("first"), last=ends.get("last"))
                break


_UNITS = re.compile(r"(?:^|_)(MiB|MB|KiB|KB|bytes|tokens|elements)(?=_|$)", re.IGNORECASE)
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_LIMIT = re.compile(r"tokens\s*<=\s*(\d+)")
_AMOUNT = re.compile(r"([\d.]+)\s*((?:MiB|KiB|MB|KB|bytes|tokens)\b.*)")
_OTHER_MATTERS = re.compile(r"(\w*worlds|tp|rule|note|prefetch\w*|splits?|front|published_gt|\w+_cap)", re.IGNORECASE)
"""Names under which something else stands than from where to where a choice serves."""


def _leaves(stated: Mapping[str, Any], modes: Sequence[str], base: Choice) -> Iterator[Choice]:
    """Every number, range and amount under names, e.g. ``{"one_shot_max": {"90": {"8": 0.5}}}``."""
    yield from _rule(stated.get("rule"), modes, base)
    for path, value in _walk(stated):
        if isinstance(value, bool) or any(_OTHER_MATTERS.fullmatch(part) for part in path):
            continue
        here = _at(path, modes, base)
        words = here.label.split("_")
        if isinstance(value, int | float):
            place = here.scale.place(value)
            # What is below a strict limit ends before it.
            yield replace(here, first=place) if "first" in words else replace(here, last=place - ("lt" in words))
        elif isinstance(value, list) and len(value) == 2:
            low, high = (here.scale.place(each) for each in value)
            yield replace(here, first=low + ("open" in words), last=high - ("open" in words))
        elif isinstance(value, str):
            yield from _text(value, modes, here)


def _text(value: str, modes: Sequence[str], here: Choice) -> Iterator[Choice]:
    limit, amount = _LIMIT.fullmatch(value), _AMOUNT.match(value)
    if limit:
        yield replace(here, scale=Scale("tokens"), last=int(limit[1]))
    elif amount:
        scale = scale_of(amount[2])
        yield replace(here, scale=scale, last=scale.place(float(amount[1])))
    elif _RANGES.fullmatch(value):
        for each in value.split(","):
            first, _, last = each.partition("-")
            yield replace(here, first=int(first), last=int(last or first))
    else:
        shape = here.label if _words(here.label) or not here.group else ""
        yield from _rule(value, modes, replace(here, group=", ".join(filter(None, (here.group, shape)))))


def _walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _walk(part, (*path, str(name)))
    else:
        yield path, value


def _at(path: Sequence[str], modes: Sequence[str], base: Choice) -> Choice:
    """The choice that a path of names stands for, without its places."""
    where, rest = base.where, []
    named = [part for part in path if not part.replace(".", "").isdigit()]
    label = next((part for part in reversed(named) if _mode(part, modes)), named[0] if named else "")
    for part in path:
        world = re.fullmatch(r"(?:ws)?(\d{1,2})", part)
        if world and where.world is None and 2 <= int(world[1]) <= MOST_WORLD:
            where = replace(where, world=int(world[1]))
            rest.append(f"ws={world[1]}")
        elif part != label:
            rest.append(part)
    several = re.search(r"ws_le(\d+)", label)
    if several:
        rest.append(f"ws<={several[1]}")
    if _PARTS.fullmatch(label.partition("_")[0]):
        rest.append(label.partition("_")[0])
    width = re.search(r"width_(\d+)", label)
    if width:
        where = replace(where, width=int(width[1]))
    unit = _UNITS.search(label)
    scale = scale_of(unit[1]) if unit else base.scale
    if "traffic" in label:
        scale = Scale("traffic bytes", scale.factor)
    mode = _mode(label, modes) if _words(label) else _default(modes)
    return replace(base, label=label or mode or "", mode=mode, group=", ".join(rest), where=where, scale=scale)


def _default(modes: Sequence[str]) -> str | None:
    """Whose limit it is that says no more: the first of two modes, else the only one-shot."""
    if len(modes) == 2:
        return modes[0]
    one_shot = [mode for mode in modes if "1shot" in _words(mode)]
    return one_shot[0] if len(one_shot) == 1 else None


_PARTS = re.compile(r"(g?[abh]\d{2,3}|mi\d{3}x?|sm\d{2,3}|gfx\w+)", re.IGNORECASE)
"""GPUs."""
_SAME = {
    "oneshot": "1shot",
    "1stage": "1shot",
    "one_shot": "1shot",
    "one_stage": "1shot",
    "twoshot": "2shot",
    "2stage": "2shot",
    "two_shot": "2shot",
    "two_stage": "2shot",
    "flashinfer": "fi",
    "multicast": "mc",
}
_WORDLESS = frozenset(
    (
        *("max", "min", "lt", "le", "first", "last", "value", "limit", "threshold", "cutoff", "crossover", "cap"),
        *("at", "armed", "call", "width", "kernel", "own", "old", "new", "adopted", "range", "open", "interval"),
        *("preferred", "all", "reduce", "bytes", "mib", "mb", "kib", "kb", "tokens", "elements", "traffic", "ws"),
    )
)
"""What a limit is called whatever it limits."""


def _words(name: str) -> frozenset[str]:
    """What a name is about: its words without those that every limit has."""
    text = name.lower().replace("-", "_")
    for spelled, same in _SAME.items():
        text = text.replace(spelled, same)
    words = (word for word in re.split(r"[_\W]+", text) if word and word not in _WORDLESS)
    return frozenset(word for word in words if not _PARTS.fullmatch(word) and not re.fullmatch(r"(le|ws)?\d+", word))


def _mode(label: str, modes: Sequence[str]) -> str | None:
    """The mode that a label means: all its words are the mode's, or begin them, and no other mode is as near."""
    words = _words(label)
    if not words:
        return None

    def fits(mode: str) -> bool:
        return all(any(theirs.startswith(word) for theirs in _words(mode)) for word in words)

    found = [mode for mode in modes if fits(mode)]
    exact = [mode for mode in found if _words(mode) == words]
    found = exact or found
    return found[0] if len(found) == 1 else None
