"""What a published entry holds: who took how long, or who won, at which place; a group for each world and shape.

Groups are never pooled: a crossover of one world or width says nothing of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from megatune_kernels.statistics import Interval
from megatune_planner.published.units import Scale
from megatune_planner.published.units import Where
from megatune_planner.published.units import item_bytes
from megatune_planner.published.units import scale_of

Entry = Mapping[str, Any]

_FIGURES = ("x", "us", "std_us", "winner", "band_bytes", "speedup", "improvement_pct", "wins_up_to", "gain_pct")


@dataclass
class Point:
    """What is known at one place."""

    us: dict[str, Interval] = field(default_factory=dict)
    """Latency by mode."""
    winner: str | None = None
    ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time of the first mode over that of the second."""


@dataclass
class Group:
    """Points that may be compared: of one world, one shape and whatever else the source tells apart."""

    label: str
    """What tells the group from the entry's others, e.g. ``ws=8``; empty for the only one."""
    where: Where
    scale: Scale
    points: dict[int, Point] = field(default_factory=dict)
    wins_up_to: tuple[str, int, int | None] | None = None
    """A mode that is said to win up to a place, and from which place on it does not; None: the source does not say."""


def groups(entry: Entry) -> list[Group]:
    """The groups of an entry's points, in their order; none where there are no points."""
    found: dict[str, Group] = {}
    resolution = _resolution(entry)
    for point in entry.get("points") or ():
        place, world, width = _place(entry, point)
        extra = [name for name in point if name not in _FIGURES and not name.endswith("_pct")]
        labels = [f"{name}={point[name] if point[name] is not None else '?'}" for name in extra]
        if isinstance(point.get("x"), str):
            labels.append(f"width={width}")
        if world != entry.get("world_size") and not {"ws", "tp"} & set(extra):
            labels.append(f"ws={world}")
        label = ", ".join(labels)
        if label not in found:
            where = Where(world, width, item_bytes(entry.get("dtype")), is_collective(entry))
            found[label] = Group(label, where, _scale(entry))
        _add(found[label], entry, point, place, resolution)
    return list(found.values())


_COLLECTIVE = re.compile(
    r"shot|stage|fanout|nccl|symm|push|pull|\bLL|relay|bidir|mnnvl|custom|all_?reduce|gather|scatter|dispatch_curves"
)


def is_collective(entry: Entry) -> bool:
    """Whether an entry is about ranks that exchange partials, so that bytes of these make sense.

    It is where its places are bytes, or where its words say so.
    """
    words = " ".join([str(entry.get("family")), *modes_of(entry)])
    return scale_of(entry.get("x_unit")).unit in ("bytes", "traffic bytes") or bool(_COLLECTIVE.search(words))


def modes_of(entry: Entry) -> list[str]:
    return list(entry.get("modes") or ())


def mode_named(name: str, modes: Sequence[str]) -> str | None:
    """The mode that a figure's key means: its name, or the only mode whose name is a part of the key or begins so."""
    if name in modes:
        return name
    near = [mode for mode in modes if mode in name] or [mode for mode in modes if mode.startswith(f"{name}_")]
    return near[0] if len(near) == 1 else None


def _scale(entry: Entry) -> Scale:
    unit = str(entry.get("x_unit") or "")
    return Scale("tokens") if "world_size at" in unit or "tokens x hidden" in unit else scale_of(unit)


def _place(entry: Entry, point: Mapping[str, Any]) -> tuple[float | None, int | None, int | None]:
    """The place in the entry's unit, the world and the width of one point."""
    world = point.get("ws", point.get("tp", entry.get("world_size")))
    width = entry.get("hidden_size")
    place = point.get("x")
    at_tokens = re.search(r"world_size at (\d+) tokens", str(entry.get("x_unit")))
    if at_tokens and place is not None:
        return float(at_tokens.group(1)), int(place), width
    if isinstance(place, str):
        tokens, _, hidden = place.partition("x")
        return float(tokens), world, int(hidden)
    return place, world, width


def _add(group: Group, entry: Entry, point: Mapping[str, Any], place: float | None, resolution: float) -> None:
    modes = modes_of(entry)
    if "band_bytes" in point:
        for end in point["band_bytes"]:
            group.points.setdefault(group.scale.place(end), Point()).winner = point["winner"]
    if "wins_up_to" in point and modes:
        last, beyond = _range(point["wins_up_to"])
        group.wins_up_to = (modes[0], group.scale.place(last), beyond if beyond is None else group.scale.place(beyond))
    if place is None:
        return
    here = group.points.setdefault(group.scale.place(place), Point())
    here.winner = point.get("winner", here.winner)
    spread = point.get("std_us") or {}
    known = {name: mode_named(name, modes) for name in point.get("us") or {}}
    for name, mode in known.items():
        if mode is not None and point["us"][name] is not None:
            half = _noise_us(entry, mode, point["us"][name]) + max(spread.get(name, 0.0), resolution / 2)
            us = float(point["us"][name])
            here.us[mode] = Interval(us, max(us - half, 1e-3), us + half)
    for first, second, ratio in _deltas(point, modes):
        here.ratios[first, second] = ratio


def _deltas(point: Mapping[str, Any], modes: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """Ratios from differences in percent, as ``{"…_delta_pct": {"A_vs_B": -5.4}}``: A takes so much more than B."""
    for name, deltas in point.items():
        if name.endswith("_delta_pct") and isinstance(deltas, Mapping):
            for names, percent in deltas.items():
                sides = [_abbreviated(side, modes) for side in str(names).split("_vs_")]
                if len(sides) == 2 and sides[0] is not None and sides[1] is not None:
                    yield sides[0], sides[1], 1 + percent / 100


def _abbreviated(name: str, modes: Sequence[str]) -> str | None:
    found = [mode for mode in modes if mode == name] or [mode for mode in modes if mode.startswith(name)]
    return found[0] if len(found) == 1 else None


def _range(value: Any) -> tuple[float, float | None]:
    """A number, or two as ``64-128``: from where to where something ends."""
    if isinstance(value, str):
        first, _, last = value.partition("-")
        return float(first), float(last) if last else None
    return float(value), None


def _resolution(entry: Entry) -> float:
    """The step of the latencies as they were published: 1 where all are whole, else that of the finest."""
    spelled = [repr(us) for point in entry.get("points") or () for us in (point.get("us") or {}).values()]
    decimals = [len(text.partition(".")[2]) for text in spelled]
    return float(10.0 ** -max(decimals, default=0))


def _noise_us(entry: Entry, mode: str, us: float) -> float:
    """Half the width of the noise that the source states, in microseconds; 0 where it states none, or no unit."""
    noise = entry.get("noise")
    if isinstance(noise, Mapping):
        noise = noise.get(mode)
    stated = re.search(r"([\d.]+)\s*(%|us|µs)", str(noise or ""))
    if stated is None:
        return 0.0
    return float(stated.group(1)) * (us / 100 if stated.group(2) == "%" else 1.0)
