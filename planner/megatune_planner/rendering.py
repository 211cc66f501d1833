"""A plan for people: what serves which tokens, by how much it wins, and on what that rests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.console import ConsoleOptions
from rich.console import Group
from rich.console import RenderableType
from rich.console import RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from megatune_db.records import Provenance
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import RoutingPoint
from megatune_planner.band_schema import UseConfig
from megatune_planner.band_schema import UseStock
from megatune_planner.crossover_schema import Crossover
from megatune_planner.depths import OPERATOR as PREFETCH
from megatune_planner.depths import off_text
from megatune_planner.gate import Gate
from megatune_planner.plan import AskedObjective
from megatune_planner.plan import Plan
from megatune_planner.plan import Repeatability
from megatune_planner.plan import ShapePlan
from megatune_planner.plan import UnrepeatableBand
from megatune_planner.routings import at_routing
from megatune_planner.routings import changes_text
from megatune_planner.routings import routing_suffix

NARROW_COLUMNS = 80
"""Of a terminal that gets the columns that matter most alone."""


def render_plan(plan: Plan) -> RenderableType:
    """The plan's target, coverage, bands, crossovers, gaps and fallback rules; plain text where colours are off."""
    return Group(*_parts(plan))


def decision_text(decision: UseConfig | UseStock) -> str:
    """The decision in one line, e.g. ``simt block=128 pdl rows=2``, or ``stock (cublas)``. What is off is left out."""
    if decision.kind == "stock":
        return "stock" if decision.baseline is None else f"stock ({decision.baseline})"
    words = [
        name if value is True else f"{name}={value}"
        for name, value in sorted(decision.params.items())
        if value is not False
    ]
    return " ".join([decision.variant, *words])


def facts_text(facts: Mapping[str, float]) -> str:
    """What an operator says of a workload beside its key, e.g. ``distinct experts 121, tokens an expert 1.06``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in facts.items())


def routing_text(point: RoutingPoint) -> str:
    """What a decision takes at one routing of a mix, in words."""
    took = f"{point.latency.median_us:.2f} of {point.baseline_latency.median_us:.2f} µs at {point.routing}"
    return f"{took} ({facts_text(point.facts)})" if point.facts else took


def gate_text(gate: Gate) -> str:
    """What the plan holds for in one line; the exact versions of the toolchain are left out."""
    words = [
        f"{gate.part} ({gate.arch}, {gate.sms} SMs, device {' or '.join(gate.device_ids)})",
        gate.model or "any model with these shapes",
        f"{' or '.join(map(str, gate.worlds))} ranks" if gate.worlds else "any number of ranks",
        f"{'/'.join(gate.dtypes)}, {gate.execution}",
        f"with {', '.join(gate.features)}" if gate.features else "no feature that it was not measured with",
    ]
    return "; ".join(words)


def repeatability_text(found: Repeatability) -> str:
    """What other seeds came to, in one line."""
    repeats = len(found.seeds) - 1
    text = (
        f"{found.flips} of {found.decisions} decisions flip over {repeats} repeat{'s' if repeats > 1 else ''} "
        f"({found.provenance}), {found.flips_beyond_ties} of them beyond ties; regret {found.regret:.2%}"
    )
    if not found.bands:
        return text
    bands = "; ".join(map(unrepeatable_where, found.bands))
    return f"{text}; not repeatable: {bands}"


def unrepeatable_where(band: UnrepeatableBand) -> str:
    """Which band it is, in words."""
    return f"{band.operator} {band.shape}, {_interval(band.tokens_lo, band.tokens_hi)} tokens"


def tokens_text(band: Band) -> str:
    """The band's tokens, e.g. ``1``, ``2-4`` or ``65+``."""
    return _interval(band.tokens_lo, band.tokens_hi)


def crossover_text(found: Crossover) -> str:
    """A crossover in one line: its kind, where it lies in tokens and in bytes, and what is wrong with it."""
    span = f"{found.tokens_lo} and {found.tokens_hi} tokens"
    if found.kind == "never":
        span = _interval(found.tokens_lo, found.tokens_hi)
        if found.faster is None:
            text = f"no crossover of {found.below} and {found.above}: they tie at {span} tokens"
        else:
            count, ties = len(found.points), len(found.tied)
            at = f"{count - ties} of" if ties else "all"
            text = (
                f"no crossover of {found.below} and {found.above}: {found.faster} is faster at {at} {count} measured "
                f"places from {found.tokens_lo} to {found.tokens_hi} tokens"
            ) + (f", a tie at {_list(found.tied)}" if ties else "")
        return text + _unpaired(found)
    if found.kind == "contested":
        changes = ", ".join(f"{change.tokens_lo}|{change.tokens_hi}" for change in found.changes)
        text = f"crossover of {found.below} and {found.above} contested between {span}: they change sides at {changes}"
    else:
        text = f"crossover {found.below} to {found.above} between {span}"
    if found.estimate_tokens is not None:
        text += f", near {found.estimate_tokens:g}"
    if found.traffic is not None:
        text += f" ({_mib(found.traffic.bytes_lo)} to {_mib(found.traffic.bytes_hi)} MiB of one-shot traffic)"
    if found.tied:
        text += f"; a tie at {_list(found.tied)}"
    if found.unmeasured:
        ranges = ", ".join(_interval(each.tokens_lo, each.tokens_hi) for each in found.unmeasured)
        text += f"; not measured: {ranges}"
    text += _unpaired(found)
    return text + (f"; suspect: {found.suspect_reason}: measure both again" if found.suspect else "")


def _unpaired(found: Crossover) -> str:
    unpaired = [p.tokens for p in found.points if not p.paired and found.tokens_lo <= p.tokens <= found.tokens_hi]
    return f"; not paired at {_list(unpaired)}" if unpaired else ""


def _list(tokens: Sequence[int]) -> str:
    """Tokens in few words, e.g. ``1, 2, 4`` or ``1, 2, … 64 (21)``."""
    if len(tokens) <= 6:
        return ", ".join(map(str, tokens))
    return f"{tokens[0]}, {tokens[1]}, … {tokens[-1]} ({len(tokens)} in all)"


def _mib(count: int) -> str:
    return f"{count / 2**20:.3g}"


def saved_share(shape: ShapePlan) -> float:
    """Share of the baseline's time that the plan saves at the measured tokens: 1 less the geometric mean ratio."""
    ratios = [
        point.latency.median_us / point.baseline_latency.median_us for band in shape.bands for point in band.points
    ]
    return 1 - math.exp(sum(map(math.log, ratios)) / len(ratios))


def _interval(lo: int, hi: int | None) -> str:
    if hi is None:
        return f"{lo}+"
    return str(lo) if lo == hi else f"{lo}-{hi}"


def _parts(plan: Plan) -> Iterator[RenderableType]:
    content = plan.content
    toolchain = content.target.toolchain
    yield Text(f"Plan {content.name}", style="bold")
    yield Padding(
        _facts(
            (
                ("digest", plan.digest),
                ("made", f"{plan.created.at} by {plan.created.by}"),
                ("target", f"{content.target.fingerprint}, DSL {toolchain['dsl']}, digest {content.target.digest}"),
                ("holds for", gate_text(content.gate)),
                ("regime", content.regime),
                ("evidence", _evidence(plan)),
                *((("objective", _objective(content.options.objective)),) if content.options.objective else ()),
                *((("repeatable", repeatability_text(content.repeatability)),) if content.repeatability else ()),
                *((("replaces", content.parent),) if content.parent else ()),
                *((("signed by", plan.signature.key),) if plan.signature else ()),
            )
        ),
        (0, 0, 0, 2),
        expand=False,
    )
    for operator in content.operators:
        for shape in operator.shapes:
            yield Text("")
            saved = f"saves {saved_share(shape):.1%} of {'/'.join(shape.fastest_baselines)}"
            yield Text.assemble(
                (f"{operator.name} {shape.shape}", "bold"),
                f"  {shape.dtype}, world {shape.world}{routing_suffix(shape)}: {saved}",
            )
            configs = list(dict.fromkeys(decision_text(b.decision) for b in shape.bands if b.decision.kind == "config"))
            yield _Bands(shape, configs)
            lines = [*(f"[{number}] {config}" for number, config in enumerate(configs, 1)), *_remarks(shape)]
            lines += [off_text(shape)] if operator.name == PREFETCH and off_text(shape) else []
            yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)
    yield Text("")
    yield Text("Fallback, the first that holds", style="bold")
    yield Padding(_rules(plan), (0, 0, 0, 2), expand=False)
    yield Text("")
    yield Text("When what they read is fixed", style="bold")
    yield Padding(_facts(_fixed(plan)), (0, 0, 0, 2), expand=False)


def _objective(asked: AskedObjective) -> str:
    weights = ", ".join(f"{name} {weight:g}" for name, weight in asked.weights.items())
    return f"{asked.kind} over {weights or 'the routings that a shape was measured at'}"


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _evidence(plan: Plan) -> str:
    coverage = plan.content.coverage
    counts = " and ".join(f"{count} {provenance}" for provenance, count in coverage.measurements.items())
    return (
        f"{counts}; of all tokens {coverage.measured_share:.0%} measured, "
        f"{coverage.predicted_share:.0%} predicted from their neighbours{_emulated(plan)}"
    )


def _emulated(plan: Plan) -> str:
    if Provenance.EMULATED not in plan.content.coverage.measurements:
        return ""
    return "; where ranks shared a GPU the slowest variant stands in for stock, and nothing of this plan is exported"


@dataclass(frozen=True)
class _Bands:
    """A shape's bands as a table, which leaves out columns where the terminal is narrow."""

    shape: ShapePlan
    configs: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _bands(self.shape, self.configs, narrow=options.max_width < NARROW_COLUMNS)


def _bands(shape: ShapePlan, configs: Sequence[str], *, narrow: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, show_edge=False)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    table.add_column("µs", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("stock µs", justify="right", no_wrap=True)
    table.add_column("saves", justify="right", no_wrap=True)
    table.add_column("measured at", overflow="fold")
    if not narrow:
        table.add_column("ties", justify="right", no_wrap=True)
    for band in shape.bands:
        points = band.points
        text = decision_text(band.decision)
        stock = text not in configs
        beside = () if narrow else (_span([point.baseline_latency.median_us for point in points], "{:.2f}"),)
        ties = () if narrow else (_span([point.tie_set_size for point in points], "{:.0f}"),)
        table.add_row(
            tokens_text(band),
            text if stock else Text(f"{text.split()[0]} [{configs.index(text) + 1}]"),
            "" if stock else _span([point.latency.median_us for point in points], "{:.2f}"),
            *beside,
            "" if stock else _span([100 * point.gain for point in points], "{:.1f}") + " %",
            Text(", ".join(str(point.tokens) for point in points) or "-"),
            *ties,
            style="dim" if stock else "",
        )
    return table


def _span(values: Sequence[float], spelled: str) -> str:
    if not values:
        return ""
    ends = [spelled.format(end) for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else "-".join(ends)


def _remarks(shape: ShapePlan) -> Iterator[str]:
    # A reason is too long for a column.
    yield from (f"{tokens_text(band)} tokens: {band.reason}" for band in shape.bands if not band.points)
    yield from (f"{tokens_text(band)} tokens: {text}" for band in shape.bands if (text := changes_text(band)))
    yield from _of_workloads(shape)
    yield from map(crossover_text, shape.crossovers)
    for gap in shape.gaps:
        yield f"gap at {gap.tokens} tokens: {gap.reason}"


def _of_workloads(shape: ShapePlan) -> Iterator[str]:
    """What the operator says of each workload, and of a mix what its decision takes at each routing."""
    points = [point for band in shape.bands for point in band.points]
    known = [(point.tokens, point.facts) for point in points if point.facts]
    for name in sorted({name for _, facts in known for name in facts}):
        told = (f"{facts[name]:.4g} at {tokens}" for tokens, facts in known if name in facts)
        yield f"{name} by tokens: {', '.join(told)}"
    for point in points:
        if point.routings:
            yield f"at {point.tokens} tokens: " + "; ".join(map(routing_text, point.routings))


def _fixed(plan: Plan) -> list[tuple[str, str]]:
    """From when on each input of the plan's rules cannot change: what is decided in a captured graph stays decided."""
    read = dict.fromkeys(name for rule in plan.content.fallback for name in rule.inputs)
    words = {
        "load": ("at start", ""),
        "capture": ("with a graph", ""),
        "step": ("never", "; while a graph is captured, the most that the server admits decides"),
    }
    found = []
    for fixed, (when, more) in words.items():
        names = [name for name in read if plan.content.inputs[name].fixed == fixed]
        if names:
            found.append((when, ", ".join(names) + more))
    return found


def _rules(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        # A shape is one long word.
        table.add_column(overflow="fold")
    for number, rule in enumerate(plan.content.fallback, 1):
        where = ""
        # Of rules about a shape, at which routing.
        routing = getattr(rule, "routing", "none")
        of = f"{at}," if (at := at_routing(routing)) else ""
        if rule.when == "outside_tokens":
            # There is no step of fewer tokens than 1.
            below = f"below {rule.below}, " if rule.below > 1 else ""
            where = f" {rule.operator} {rule.shape}{of} {below}above {rule.above}"
        elif rule.when == "stock_won":
            where = f" {rule.operator} {rule.shape}{of} {_interval(rule.tokens_lo, rule.tokens_hi)}"
        elif rule.when == "workspace_too_small":
            where = f" {rule.operator} {rule.shape}{of} world {rule.world} below {rule.workspace_bytes} bytes"
        elif rule.when == "context_too_long":
            where = f" {rule.operator} {rule.shape}{of} above {rule.above} tokens of context"
        elif rule.when == "missing_link":
            where = f" {rule.links}"
        table.add_row(
            Text(f"{number}.", style="dim"),
            Text(f"{rule.when.replace('_', ' ')}{where}"),
            Text(rule.then),
            Text(rule.reason, style="dim"),
        )
    return table
