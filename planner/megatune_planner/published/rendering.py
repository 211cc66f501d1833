"""Answers on published figures as text: one line a fact, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator

from megatune_planner.published.model import Answer
from megatune_planner.published.model import Chosen
from megatune_planner.published.model import Published
from megatune_planner.published.model import PublishedCrossover
from megatune_planner.published.units import Span


def published_lines(found: Published) -> Iterator[str]:
    """An entry's answers: each group's winners and crossovers, what the source chose, and what could not be said."""
    kind = "constants in code" if found.constant else "measured elsewhere"
    facts = [part for part in (found.hardware, found.dtype, kind) if part is not None]
    yield f"{found.id}: {', '.join(facts)}"
    for answer in found.answers:
        where = [f"world {answer.world or 'unknown'}", f"width {answer.width or 'unknown'}"]
        yield f"  {', '.join([part for part in (answer.group,) if part] + where)}: {_winners(answer)}"
        yield from (f"    {_crossover(each)}" for each in answer.crossovers)
    yield from (f"  chosen: {_chosen(each)}" for each in found.chosen)
    yield from (f"  note: {remark}" for remark in found.remarks)
    sources = [found.source] if isinstance(found.source, str) else dict.fromkeys(found.source)
    yield from (f"  source: {source}" for source in sources)


def _winners(answer: Answer) -> str:
    return ", ".join(f"{run.mode} {_places(run.lo, run.hi)}" for run in answer.winners) or "no winner is named"


def _crossover(found: PublishedCrossover) -> str:
    if found.kind == "never":
        who = f"{found.faster} faster" if found.faster else "they tie"
        text = f"{found.below} | {found.above}: never, {who} at {_places(found.lo, found.hi)} {found.unit}"
    else:
        text = f"{found.below} | {found.above}: {found.kind} {_places(found.lo, found.hi)} {found.unit}"
    if found.kind == "contested":
        text += f", changes at {', '.join(f'{low}|{high}' for low, high in found.changes)}"
    if found.estimate is not None:
        text += f", near {found.estimate:.10g}"
    if found.tied and (found.faster or found.kind != "never"):
        text += f", ties at {', '.join(map(str, found.tied))}"
    spans = [
        _span(span, name)
        for name, span in (
            ("tokens", found.tokens if found.unit != "tokens" else None),
            ("traffic bytes", found.traffic_bytes if found.unit != "traffic bytes" else None),
        )
        if span is not None
    ]
    text += f" ({'; '.join(spans)})" if spans else ""
    text += "" if found.measured else "; not measured"
    return text + (f"; suspect: {found.suspect}" if found.suspect else "")


def _chosen(found: Chosen) -> str:
    name = found.label if found.mode in (None, found.label) else f"{found.label} ({found.mode})"
    places = "everywhere" if found.first is found.last is None else f"{_range(found)} {found.unit}"
    spans = [
        _span(span, unit)
        for unit, span in (
            ("tokens", found.tokens if found.unit != "tokens" else None),
            ("traffic bytes", found.traffic_bytes if found.unit != "traffic bytes" else None),
        )
        if span is not None
    ]
    group = f" [{found.group}]" if found.group else ""
    text = f"{name}{group} {places}" + (f" ({'; '.join(spans)})" if spans else "")
    return text + (f": {found.verdict}" if found.verdict else "")


def _range(found: Chosen) -> str:
    if found.first is None:
        return f"up to {found.last}"
    return _places(found.first, found.last)


def _places(lo: int, hi: int | None) -> str:
    if hi is None:
        return f"{lo}+"
    return str(lo) if lo == hi else f"{lo}-{hi}"


def _span(span: Span, unit: str) -> str:
    low, high = ("" if end is None else f"{end:.10g}" for end in (span.lo, span.hi))
    places = f"{low}-{high}" if low and high and low != high else f"up to {high}" if not low else low + "+" * (not high)
    return f"{places} {unit}" + ("" if span.estimate is None else f", near {span.estimate:.10g}")
