"""A wheel that vLLM loads: the plan, its reader, and an overlay that changes vLLM's tables in place.

What the overlay changes is what the exporters of the tables make of the plan. It is written down in ``overlay.json``,
and the sources in ``vllm_overlay`` carry it out. Further tables are an entry in ``PARTS``, and a kind of table that the
overlay does not know yet is a class in its ``tables.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_planner import reader
from megatune_planner.depths import OPERATOR as PREFETCH
from megatune_planner.exporters import batch_table
from megatune_planner.exporters import vllm_low_latency_table
from megatune_planner.exporters import vllm_next_attention
from megatune_planner.exporters import vllm_overlay
from megatune_planner.exporters import vllm_specialized_decode
from megatune_planner.exporters import wheel
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.vllm_decode_schema import Tables as DecodeTables
from megatune_planner.exporters.vllm_low_latency_table import OVERLAPPED
from megatune_planner.exporters.vllm_low_latency_table import OVERLAPPED_TOKENS
from megatune_planner.exporters.vllm_low_latency_table import VllmLowLatencyTable
from megatune_planner.exporters.vllm_overlay.overlay import DIGEST_FILE
from megatune_planner.exporters.vllm_plugin_markdown import render
from megatune_planner.exporters.vllm_plugin_names import DECODE
from megatune_planner.exporters.vllm_plugin_names import ENGINE
from megatune_planner.exporters.vllm_plugin_names import GEMM
from megatune_planner.exporters.vllm_plugin_names import joined
from megatune_planner.exporters.vllm_plugin_schema import Ask
from megatune_planner.exporters.vllm_plugin_schema import Batches
from megatune_planner.exporters.vllm_plugin_schema import Overlay
from megatune_planner.exporters.vllm_plugin_schema import Projections
from megatune_planner.exporters.vllm_plugin_schema import Shape
from megatune_planner.exporters.vllm_plugin_schema import StockShape
from megatune_planner.exporters.vllm_specialized_decode import VllmSpecializedDecode
from megatune_planner.exporters.vllm_table_schema import MAX_TOKENS
from megatune_planner.exporters.vllm_table_schema import MIN_GAIN
from megatune_planner.exporters.vllm_table_schema import Entry
from megatune_planner.exporters.vllm_table_schema import Table as GemmTable
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

DISTRIBUTION = "megatune-vllm-plan"
PACKAGE = "megatune_vllm_plan"
MARKDOWN_FILE = "vllm_plugin.md"
DSV3 = "dsv3_fused_a"
"""A kernel that vLLM's table may name in place of a config. It keeps its place where it was not measured."""


UNHELD = {
    "router_front": "no table of vLLM's holds what it decides: the specialised decode always shares the router's rows "
    "out, and FRONT, MERGED and SPLIT are about kernels of vLLM's own",
    "experts": "no table of vLLM's holds what it decides: PREGROUP, EARLY and JOIN are about kernels of vLLM's own, "
    "and tables of fused MoE about Triton's",
}
"""Operators that a plan may have and the overlay never changes anything for, and why."""


@dataclass(frozen=True)
class Changes:
    """What a part of the plan changes."""

    tables: tuple[Batches | Projections, ...]
    skipped: tuple[str, ...]
    stock_steps: Mapping[str, tuple[StockShape, ...]]


@dataclass(frozen=True)
class Source:
    """An exporter whose file says what tables should hold, and what becomes of that in the overlay."""

    exporter: Exporter
    file: str
    changes: Callable[[Plan, str], Changes]
    names: Names
    """What the overlay touches for it, beside what the exporter's own file rests on."""


class VllmPlugin(Exporter):
    """``megatune_vllm_plan-VERSION+DIGEST.rCONTENTS-py3-none-any.whl`` and what to know of it."""

    name = "vllm-plugin"
    what = "a wheel that changes the tables of vLLM 0.33.0 where it is installed, and falls back where the plan says so"
    runtime = "vllm"
    runtime_version = "0.33.0"
    relies_on = joined(ENGINE, GEMM, DECODE, VllmLowLatencyTable.relies_on, VllmSpecializedDecode.relies_on)

    def needs(self, plan: Plan) -> Names:
        found = _changes(plan)
        return joined(ENGINE, *(each for source, _ in found for each in (source.exporter.needs(plan), source.names)))

    def files(self, plan: Plan) -> dict[str, str | bytes]:
        overlay = _overlay(plan, Runtime(name=self.runtime, version=self.runtime_version))
        text = canonical_json(overlay.model_dump(mode="json")) + "\n"
        Overlay.model_validate_json(text)
        plan_text = plan.to_json()
        # What the embedded reader would refuse is not exported; it raises what the command prints.
        Plan.from_json(plan_text)
        sources = {path.name: path for path in sorted(Path(vllm_overlay.__file__).parent.glob("*.py"))}
        sources["reader.py"] = Path(reader.__file__)
        packed = {
            **{f"{PACKAGE}/{name}": path.read_text(encoding="utf-8") for name, path in sources.items()},
            f"{PACKAGE}/plan.json": plan_text,
            f"{PACKAGE}/overlay.json": text,
            f"{PACKAGE}/{DIGEST_FILE}": f"{hashlib.sha256(text.encode()).hexdigest()}\n",
        }
        version = wheel.version(self.runtime_version, plan.digest, packed)
        built = wheel.build(
            DISTRIBUTION,
            version,
            summary=f"Megatune plan {plan.digest} for {self.runtime} {self.runtime_version}",
            requires_python=">=3.11",
            files=packed,
            entry_points={"vllm.general_plugins": {PACKAGE: f"{PACKAGE}:register"}},
        )
        name = wheel.file_name(DISTRIBUTION, version)
        return {name: built, MARKDOWN_FILE: render(overlay, name, hashlib.sha256(built).hexdigest(), DISTRIBUTION)}


def _changes(plan: Plan) -> list[tuple[Source, Changes]]:
    """What each part of the plan changes.

    :raises MegatuneError: when none changes anything.
    """
    found, refused = [], []
    for source in PARTS:
        try:
            text = source.exporter.files(plan)[source.file]
            found.append((source, source.changes(plan, str(text))))
        except MegatuneError as error:
            refused.append(f"{source.exporter.name}: {str(error).removeprefix(f'{source.exporter.name}: ')}")
    if not found:
        refused += _unheld(plan)
        raise MegatuneError(f"vllm-plugin: the plan changes nothing in vLLM: {'; '.join(dict.fromkeys(refused))}")
    return found


def _unheld(plan: Plan) -> list[str]:
    return [f"{each.name}: {UNHELD[each.name]}" for each in plan.content.operators if each.name in UNHELD]


def _overlay(plan: Plan, runtime: Runtime) -> Overlay:
    found = [changes for _, changes in _changes(plan)]
    return Overlay(
        runtime=runtime,
        plan=PlanSource.of(plan),
        tables=tuple(table for changes in found for table in changes.tables),
        stock_steps={world: shapes for changes in found for world, shapes in changes.stock_steps.items()},
        # What an exporter left out it says of all its tables at once.
        skipped=(*dict.fromkeys(each for changes in found for each in changes.skipped), *_unheld(plan)),
    )


def _projections(plan: Plan, text: str) -> Changes:
    table = GemmTable.model_validate_json(text)
    planned = {
        (operator.name, each.dims["n"], each.dims["k"]): each
        for operator in plan.content.operators
        if operator.name in (vllm_low_latency_table.ADAPTER, vllm_low_latency_table.OPERATOR)
        for each in operator.shapes
        if _bf16(each)
    }
    shapes: list[Shape] = []
    asks: list[Ask] = []
    unused: list[str] = []
    for shape in table.shapes:
        heeded = [entry for entry in shape.entries if not _overlapped(shape.n, shape.k, entry.tokens)]
        if len(heeded) < len(shape.entries):
            unused.append(
                f"n={shape.n},k={shape.k} at up to {OVERLAPPED_TOKENS} tokens: vLLM overlaps this projection with "
                "another one there, without its table"
            )
        if not heeded:
            continue
        found = planned[shape.operator, shape.n, shape.k]
        shapes.append(
            Shape(
                n=shape.n,
                k=shape.k,
                configs=tuple(entry.config for entry in heeded),
                beats_dsv3=tuple(entry.tokens for entry in heeded if _beats_dsv3(found, entry)),
            )
        )
        asks += _asks(shape.operator, found, MAX_TOKENS, context_tokens=None)
    if not shapes:
        raise MegatuneError("; ".join(["no config saves enough over cuBLAS where vLLM heeds its table", *unused]))
    built = Projections(module=table.runtime.module, table=table.runtime.table, shapes=tuple(shapes), asks=tuple(asks))
    return Changes((built,), (*table.skipped, *unused), {})


def _overlapped(n: int, k: int, tokens: int) -> bool:
    return (n, k) in OVERLAPPED and tokens <= OVERLAPPED_TOKENS


def _bf16(shape: ShapePlan) -> bool:
    return shape.dtype == "bf16"


def _beats_dsv3(shape: ShapePlan, entry: Entry) -> bool:
    curve = shape.curve("baseline", DSV3)
    point = curve.at(entry.tokens) if curve else None
    if point is None:
        return False
    ours = entry.measured.latency
    return ours.high_us < point.latency.low_us and ours.median_us <= (1 - MIN_GAIN) * point.latency.median_us


def _reductions(plan: Plan, text: str) -> Changes:
    written = DecodeTables.model_validate_json(text)
    planned = {(each.world, each.dims["width"]): each for each in plan.operator("reduction").shapes if _bf16(each)}
    stock: dict[str, tuple[StockShape, ...]] = {}
    tables: list[Batches] = []
    for table in written.tables:
        shape = planned[table.world, table.width]
        stock[str(table.world)] = (*stock.get(str(table.world), ()), _stock(plan, shape))
        if table.value != table.shipped:
            decided = [each for each in table.stretches if each.source not in ("shipped", "unheeded")]
            tables.append(
                batches(
                    table,
                    key=table.world,
                    decided=[(each.tokens_lo, each.tokens_hi) for each in decided],
                    asks=_asks("reduction", shape, batch_table.MAX_BATCH, context_tokens=0),
                )
            )
    says = {
        world: shapes
        for world, shapes in ((world, _of_whole_steps(shapes)) for world, shapes in stock.items())
        if all(each.won for each in shapes) or any(each.context_above is not None for each in shapes)
    }
    if not tables and not says:
        raise MegatuneError("its tables are those that vLLM ships, and no step is stock")
    return Changes(tuple(tables), written.skipped, says)


def _prefetches(plan: Plan, text: str) -> Changes:
    written = DecodeTables.model_validate_json(text)
    tables = []
    for table in written.prefetch:
        if table.value == table.shipped:
            continue
        shapes = (shape for each in vllm_next_attention.chains(plan, table.world).values() for shape in each)
        decided = [each for each in table.stretches if each.source != "shipped"]
        tables.append(
            batches(
                table,
                key=table.world,
                decided=[(each.tokens_lo, each.tokens_hi) for each in decided],
                asks=[ask for s in shapes for ask in _asks(PREFETCH, s, batch_table.MAX_BATCH, context_tokens=0)],
            )
        )
    if not tables:
        raise MegatuneError("no prefetch table differs from the one that vLLM ships")
    return Changes(tuple(tables), written.skipped, {})


class BatchTable(Protocol):
    """What an exporter says of a table by batch."""

    @property
    def module(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def world(self) -> int: ...
    @property
    def shipped(self) -> str: ...
    @property
    def value(self) -> str: ...


def batches(table: BatchTable, *, key: int, decided: Iterable[tuple[int, int]], asks: Iterable[Ask]) -> Batches:
    """A table of the specialised decode as the overlay changes it.

    :param key: of the entry in the runtime's dict.
    :param decided: first and last tokens of what the plan decides.
    :param asks: what the plan must not call stock.
    """
    return Batches(
        module=table.module,
        table=table.name,
        world=table.world,
        key=key,
        shipped=table.shipped,
        value=table.value,
        means=tuple(_runs(batch_table.parse(table.value))),
        decided=tuple(decided),
        asks=tuple(asks),
    )


def _stock(plan: Plan, shape: ShapePlan) -> StockShape:
    won: list[tuple[int, int]] = []
    contexts: list[int] = []
    reasons: list[str] = []
    for rule in plan.content.fallback:
        if rule.when not in ("stock_won", "context_too_long"):
            continue
        if (rule.operator, rule.shape, rule.dtype, rule.world, rule.routing) != ("reduction", *shape.key):
            continue
        if rule.when == "stock_won":
            won.append((rule.tokens_lo, min(rule.tokens_hi, batch_table.MAX_BATCH)))
        else:
            contexts.append(rule.above)
        reasons.append(rule.reason)
    fitting = tuple((lo, hi) for lo, hi in won if lo <= batch_table.MAX_BATCH)
    return StockShape(shape=shape.shape, won=fitting, context_above=min(contexts, default=None), reasons=tuple(reasons))


def _of_whole_steps(shapes: tuple[StockShape, ...]) -> tuple[StockShape, ...]:
    """A step reduces at every width: what won at some of them says nothing of the step where another is not known."""
    if len(shapes) == len(vllm_specialized_decode.DICTS):
        return shapes
    return tuple(each.model_copy(update={"won": ()}) for each in shapes)


def _asks(operator: str, shape: ShapePlan, most: int, *, context_tokens: int | None) -> Iterator[Ask]:
    """The first tokens of every band with a config that the runtime's table can have."""
    for band in shape.bands:
        if band.decision.kind == "config" and band.tokens_lo <= most:
            yield Ask(
                operator=operator,
                shape=shape.shape,
                tokens=band.tokens_lo,
                dtype=shape.dtype,
                world=shape.world,
                routing=shape.routing,
                context_tokens=context_tokens,
            )


def _runs(table: Mapping[int, batch_table.Value]) -> Iterator[tuple[int, int, batch_table.Value]]:
    """First tokens, last tokens and value of each run of neighbours with the same."""
    for (value, _), run in groupby(enumerate(table.items()), key=lambda each: (each[1][1], each[1][0] - each[0])):
        tokens = [batch for _, (batch, _) in run]
        yield tokens[0], tokens[-1], value


PARTS = (
    Source(VllmLowLatencyTable(), vllm_low_latency_table.JSON_FILE, _projections, GEMM),
    Source(VllmSpecializedDecode(), vllm_specialized_decode.JSON_FILE, _reductions, DECODE),
    Source(VllmSpecializedDecode(), vllm_specialized_decode.JSON_FILE, _prefetches, DECODE),
)
"""What the overlay is made of."""
