"""Who serves where, by the limits and route tables that a source chose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from megatune_planner.published.chosen import Choice
from megatune_planner.published.units import Scale
from megatune_planner.published.units import Where


class Run(NamedTuple):
    """Places with one mode, both ends included; ``last`` is None for no end."""

    mode: str
    first: int
    last: int | None


class Dispatch(NamedTuple):
    """Who serves where in one group of a source's choices."""

    group: str
    where: Where
    scale: Scale
    runs: list[Run]


def dispatches(stated: Sequence[Choice], modes: Sequence[str], family: str) -> Iterator[Dispatch]:
    """What the choices come to, group by group; nothing for those that do not say what serves beside them.

    Where they are limits, the modes are taken in their order: the first whose limits hold serves, and the last mode
    serves where none does. Caps of several libraries that say nothing of an order are no such thing.
    """
    if family.endswith("caps"):
        return
    if not modes:
        yield from _switches(stated)
        return
    for members in _grouped(_named(stated, modes)):
        first = members[0]
        runs = _listed(members) if first.listed else _preferred(members, modes)
        if runs:
            yield Dispatch(first.group, first.where, first.scale, runs)


def _switches(stated: Sequence[Choice]) -> Iterator[Dispatch]:
    """What is switched on from one place to another, where nothing else is named: it is off before."""
    for each in stated:
        if each.first is not None and each.last is not None:
            runs = [Run(each.label, each.first, each.last)]
            if each.first > 1:
                runs.insert(0, Run(f"not {each.label}", 1, each.first - 1))
            yield Dispatch(each.group, each.where, each.scale, runs)


def is_same_but_for_its_shots(one: str, other: str) -> bool:
    """Whether two modes are the one-shot and the two-shot form of one thing."""

    def stripped(name: str) -> str:
        return re.sub(r"(one|two|1|2)_?(?=shot|stage)", "#", name)

    return one != other and "#" in stripped(one) and stripped(one) == stripped(other)


def _named(stated: Sequence[Choice], modes: Sequence[str]) -> list[Choice]:
    """Choices whose mode is known; a label that names none is the only mode's that has no label, before the last."""
    free = [mode for mode in modes[:-1] if all(each.mode != mode for each in stated)]
    labels = {each.label for each in stated if each.mode is None}
    if len(free) == len(labels) == 1 and len(modes) > 2:
        stated = [replace(each, mode=free[0]) if each.mode is None else each for each in stated]
    return [each for each in stated if each.mode in modes]


def _grouped(stated: Sequence[Choice]) -> list[list[Choice]]:
    """Choices that hold together, of one world, width and unit. What is said of no group holds in all of them."""
    limits = Counter((each.group, each.where, each.scale, each.mode) for each in stated if each.first is None)
    found: dict[tuple[object, ...], list[Choice]] = {}
    for each in stated:
        if limits[each.group, each.where, each.scale, each.mode] > 1:
            # Several limits of one mode are several choices, e.g. an old one and a new one.
            each = replace(each, group=", ".join(filter(None, (each.group, each.label))))
        found.setdefault((each.group, each.where, each.scale), []).append(each)
    common = [key for key in found if not key[0]]
    others = [key for key in found if key[0]]
    for key in common:
        joined = [other for other in others if other[1:] == key[1:]]
        disjoint = all(a.mode != b.mode for other in joined for a in found[other] for b in found[key])
        if joined and disjoint:
            for other in joined:
                found[other] += found[key]
            del found[key]
    return list(found.values())


def _listed(members: Sequence[Choice]) -> list[Run]:
    """Runs that the source lists itself; neighbours of the same mode are one."""
    runs: list[Run] = []
    for each in sorted(members, key=lambda each: each.first or 1):
        assert each.mode is not None
        assert each.first is not None
        if runs and runs[-1].mode == each.mode:
            runs[-1] = runs[-1]._replace(last=each.last)
        else:
            runs.append(Run(each.mode, each.first, each.last))
    return runs


def _preferred(members: Sequence[Choice], modes: Sequence[str]) -> list[Run]:
    by_mode: Mapping[str, list[Choice]] = {mode: [each for each in members if each.mode == mode] for mode in modes}
    # A mode that nothing is said of is not there, except the one for the rest; where one has no end there is no rest.
    endless = any(each.first is not None and each.last is None for each in members)
    rest = None if endless else next((mode for mode in reversed(modes) if not by_mode[mode]), None)
    cuts = {1}
    for each in members:
        cuts |= {each.first or 1} | ({each.last + 1} if each.last is not None else set())
    starts = sorted(cut for cut in cuts if cut >= 1)
    runs: list[Run] = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        serving = next((mode for mode in modes if any(_holds(each, start) for each in by_mode[mode])), rest)
        if serving is None:
            continue
        last = None if following is None else following - 1
        if runs and runs[-1].mode == serving and runs[-1].last == start - 1:
            runs[-1] = runs[-1]._replace(last=last)
        else:
            runs.append(Run(serving, start, last))
    return runs


def _holds(choice: Choice, place: int) -> bool:
    return (choice.first or 0) <= place and (choice.last is None or place <= choice.last)
