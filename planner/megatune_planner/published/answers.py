"""What the planner makes of published figures: for each entry, where one choice gives way to another.

The rules are those of measured crossovers (``megatune_planner.meeting``). What was published without an interval has
that of its own rounding, or of the noise that its source states; a constant in somebody's code is no measurement, and
the answer says so. Nothing is pooled over worlds, widths or shapes, and nothing is said beyond the published places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import combinations
from itertools import pairwise

from megatune_kernels.crossing import side
from megatune_kernels.statistics import Interval
from megatune_planner.meeting import Compared
from megatune_planner.meeting import Meeting
from megatune_planner.meeting import meet
from megatune_planner.published.chosen import Choice
from megatune_planner.published.chosen import choices
from megatune_planner.published.chosen import is_listed
from megatune_planner.published.dispatch import Dispatch
from megatune_planner.published.dispatch import dispatches
from megatune_planner.published.dispatch import is_same_but_for_its_shots
from megatune_planner.published.entries import Entry
from megatune_planner.published.entries import Group
from megatune_planner.published.entries import Point
from megatune_planner.published.entries import groups
from megatune_planner.published.entries import is_collective
from megatune_planner.published.entries import modes_of
from megatune_planner.published.model import Answer
from megatune_planner.published.model import Chosen
from megatune_planner.published.model import Published
from megatune_planner.published.model import PublishedCrossover
from megatune_planner.published.model import Winner
from megatune_planner.published.units import Span
from megatune_planner.published.verdicts import verdict


def answer(entry: Entry, *, width: int | None = None, dtype: str | None = None) -> Published:
    """The planner's answer for one entry of the format ``published_crossovers/1``.

    An entry whose figures have another form than those that are known gets no answer, and the reason.

    :param width: elements of a row where the entry states none: then bytes become tokens.
    :param dtype: of the elements where the entry states none.
    """
    entry = {**entry, "hidden_size": entry.get("hidden_size") or width, "dtype": entry.get("dtype") or dtype}
    try:
        answers, chosen = _answered(entry)
        remarks = list(_remarks(entry, answers, modes_of(entry)))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        answers, chosen, remarks = [], [], [f"its figures have a form that is not known ({error!r})"]
    source = entry.get("source") or ""
    return Published(
        id=str(entry["id"]),
        source=source if isinstance(source, str) else tuple(map(str, source)),
        hardware=_text(entry.get("hardware")),
        dtype=_text(entry.get("dtype")),
        constant=entry.get("figure_kind") != "measured",
        answers=tuple(answers),
        chosen=tuple(chosen),
        remarks=tuple(remarks),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _answered(entry: Entry) -> tuple[list[Answer], list[Chosen]]:
    modes = modes_of(entry)
    measured = [group for group in groups(entry) if group.points or group.wins_up_to]
    stated = choices(entry)
    found = [_of_group(group, modes, measured=entry.get("figure_kind") == "measured") for group in measured]
    found = [each for each in found if each.crossovers]
    if not found:
        found = [_of_runs(each, modes) for each in dispatches(stated, modes, str(entry.get("family")))]
    else:
        found = [_with_unmet(each, entry, stated, modes) for each in found]
    # What is listed place by place is there as the winners.
    return found, [_chosen(each, found) for each in stated if not is_listed(entry)]


def _of_group(group: Group, modes: Sequence[str], *, measured: bool) -> Answer:
    winners = _winners(group.points)
    crossovers: list[PublishedCrossover] = []
    for first, second in _pairs(group, modes):
        compared = [each for at, point in group.points.items() if (each := _compared(at, point, first, second))]
        if compared:
            crossovers.append(_crossover(first, second, meet(compared), group, measured=measured))
    if group.wins_up_to is not None and len(modes) == 2:
        crossovers.append(_stated(group, modes, measured=measured))
    return Answer(
        group=group.label,
        world=group.where.world,
        width=group.where.width,
        winners=tuple(winners),
        crossovers=tuple(crossovers),
    )


def _winners(points: Mapping[int, Point]) -> list[Winner]:
    runs: list[Winner] = []
    for at, point in sorted(points.items()):
        winner = point.winner
        for (first, second), ratio in point.ratios.items():
            winner = first if ratio < 1 else second
        if len(point.us) > 1:
            fastest = min(point.us, key=lambda mode: point.us[mode].median)
            ties = [mode for mode, us in point.us.items() if not side(_ratio(us, point.us[fastest]))]
            winner = runs[-1].mode if runs and runs[-1].mode in ties else fastest
        if winner is None:
            continue
        if runs and runs[-1].mode == winner:
            runs[-1] = runs[-1].model_copy(update={"hi": at})
        else:
            runs.append(Winner(mode=winner, lo=at, hi=at))
    return runs


def _pairs(group: Group, modes: Sequence[str]) -> list[tuple[str, str]]:
    """Every two modes of which anything was published, in the order of the modes."""
    points = group.points.values()
    named = {name for p in points for name in (*p.us, p.winner, *(each for pair in p.ratios for each in pair))}
    present = [mode for mode in modes if mode in named]
    # Of two modes one can win everywhere, and the other not even be named.
    return list(combinations(present if len(modes) > 2 else modes, 2))


def _compared(at: int, point: Point, first: str, second: str) -> Compared | None:
    if first in point.us and second in point.us:
        one, other = point.us[first], point.us[second]
        ratio = _ratio(other, one)
        return Compared(at, side(ratio), ratio, one, other)
    for (mine, theirs), value in point.ratios.items():
        if {mine, theirs} == {first, second}:
            ratio = Interval(*[1 / value if mine == first else value] * 3)
            return Compared(at, side(ratio), ratio)
    if point.winner in (first, second):
        return Compared(at, 1 if point.winner == first else -1)
    return None


def _ratio(numerator: Interval, denominator: Interval) -> Interval:
    return Interval(
        numerator.median / denominator.median, numerator.low / denominator.high, numerator.high / denominator.low
    )


def _crossover(
    first: str, second: str, met: Meeting, group: Group, *, measured: bool, endless: bool = False
) -> PublishedCrossover:
    """:param endless: whether what holds at the last place holds for all beyond."""
    below, above = (second, first) if met.swapped else (first, second)
    high = None if endless else met.high
    return PublishedCrossover(
        kind=met.kind,
        below=below,
        above=above,
        faster=below if met.kind == "never" and met.decided else None,
        measured=measured,
        unit=group.scale.unit,
        lo=met.low,
        hi=high,
        first_place=met.first,
        last_place=met.last,
        estimate=met.estimate,
        changes=met.changes,
        tied=met.tied,
        unmeasured=met.unmeasured,
        suspect=met.suspect,
        **group.where.spans(group.scale.unit, Span(lo=met.low, hi=high, estimate=met.estimate)),
    )


def _stated(group: Group, modes: Sequence[str], *, measured: bool) -> PublishedCrossover:
    """A mode wins up to a place, says the source, and gives no other."""
    assert group.wins_up_to is not None
    mode, last, beyond = group.wins_up_to
    return PublishedCrossover(
        kind="interval",
        below=mode,
        above=next(other for other in modes if other != mode),
        faster=None,
        measured=measured,
        unit=group.scale.unit,
        lo=last,
        hi=beyond,
        first_place=last,
        last_place=last if beyond is None else beyond,
        estimate=None,
        changes=((last, beyond),),
        tied=(),
        unmeasured=((last + 1, None if beyond is None else beyond - 1),),
        suspect="",
        **group.where.spans(group.scale.unit, Span(lo=last, hi=beyond)),
    )


def _of_runs(dispatch: Dispatch, modes: Sequence[str]) -> Answer:
    """What follows from who serves where: of constants, so nothing is known of who else would be faster."""
    points: dict[int, str] = {}
    for run in dispatch.runs:
        points[run.first] = run.mode
        points[run.first if run.last is None else run.last] = run.mode
    modes = modes or [run.mode for run in dispatch.runs]
    if len(dispatch.runs) == 1:
        only = dispatch.runs[0].mode
        pairs = [(only, other) for other in modes if other != only]
    else:
        pairs = [(a.mode, b.mode) for a, b in pairwise(dispatch.runs)]
    group = Group(dispatch.group, dispatch.where, dispatch.scale)
    crossovers = []
    for first, second in _in_order(pairs, modes):
        met = meet([Compared(at, 1 if m == first else -1) for at, m in points.items() if m in (first, second)])
        endless = met.kind == "never" and dispatch.runs[-1].last is None
        crossovers.append(_crossover(first, second, met, group, measured=False, endless=endless))
    return Answer(
        group=dispatch.group,
        world=dispatch.where.world,
        width=dispatch.where.width,
        winners=tuple(Winner(mode=run.mode, lo=run.first, hi=run.last) for run in dispatch.runs),
        crossovers=tuple(crossovers),
    )


def _in_order(pairs: Iterable[tuple[str, str]], modes: Sequence[str]) -> list[tuple[str, str]]:
    """Each pair once, in the order of the modes."""
    found = ((a, b) if modes.index(a) < modes.index(b) else (b, a) for a, b in pairs)
    return list(dict.fromkeys(found))


def _with_unmet(found: Answer, entry: Entry, stated: Sequence[Choice], modes: Sequence[str]) -> Answer:
    """With what the source's choices say of a one-shot and a two-shot form that were never published at one place."""
    unmet = []
    for dispatch in dispatches(stated, modes, str(entry.get("family"))):
        if (dispatch.group, dispatch.where.world) == (found.group, found.world):
            unmet += [
                each
                for each in _of_runs(dispatch, modes).crossovers
                if is_same_but_for_its_shots(each.below, each.above)
                and {each.below, each.above} not in [{known.below, known.above} for known in found.crossovers]
            ]
    return found.model_copy(update={"crossovers": (*found.crossovers, *unmet)})


def _chosen(choice: Choice, found: Sequence[Answer]) -> Chosen:
    unit = choice.scale.unit
    return Chosen(
        label=choice.label,
        mode=choice.mode,
        group=choice.group,
        world=choice.where.world,
        unit=unit,
        first=choice.first,
        last=choice.last,
        **choice.where.spans(unit, Span(lo=choice.first, hi=choice.last)),
        verdict=verdict(choice, found),
    )


def _remarks(entry: Entry, found: Sequence[Answer], modes: Sequence[str]) -> Iterator[str]:
    if not modes:
        yield "the source names no alternatives: what is switched on is compared with what is before"
    elif not found:
        yield "no two alternatives have a figure at the same place, nor a limit between them"
    crossovers = [each for answer_ in found for each in answer_.crossovers]
    if any(not each.measured for each in crossovers):
        yield "what is not measured follows from what the source's code or text chose: no latencies are known for it"
    counted = [each for each in crossovers if is_collective(entry) and each.unit == "tokens"]
    if any(each.payload_bytes is None for each in counted):
        yield "bytes need the width and the dtype, which the source does not state"
    if any(each.unit != "tokens" and each.tokens is None for each in crossovers):
        yield "tokens need the width and the dtype, which the source does not state"
    if any(each.payload_bytes is not None and each.traffic_bytes is None for each in crossovers):
        yield "bytes of one-shot traffic need the world, which the source does not state"
    if any("improvement_pct" in point for point in entry.get("points") or ()):
        yield "gains in percent do not say who is the faster: they are no sides"
    if entry.get("noise") and not re.search(r"\d\s*(%|us|µs)", str(entry["noise"])):
        yield "the noise is stated without a unit, and not used"
