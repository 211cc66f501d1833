"""Tables of fused-MoE configs by tokens, exact although the runtimes take the nearest key.

Where both ends of every run of tokens that share a config are keys, the nearest key of any number of tokens is one of
its own run. What the plan leaves to stock is a run too: of the config that the runtime would choose without a table,
because a table that it finds has no way to say so. So no number of tokens gets what was measured elsewhere.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import pairwise

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import BandPoint
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.measured import require_measured
from megatune_planner.exporters.moe_schema import Layer
from megatune_planner.exporters.moe_schema import MoeConfig
from megatune_planner.exporters.moe_schema import config_of
from megatune_planner.exporters.moe_schema import is_moe
from megatune_planner.exporters.moe_schema import layer_of
from megatune_planner.exporters.reduction_markdown import heading
from megatune_planner.exporters.reduction_markdown import left_out
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.guards import guard_rows
from megatune_planner.guards import nearest_row
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.routings import at_routing

Row = dict[str, int | bool]
"""A config as a table spells it, in the order in which it is written."""

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
"""Where what the runtimes run without a table is known: they have other rules for GPUs of less shared memory."""


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens that share a row."""

    lo: int
    hi: int | None
    """Last tokens; None: without end."""
    row: Row
    stock: bool
    points: tuple[BandPoint, ...]
    """What was measured inside."""


@dataclass(frozen=True)
class Table:
    """One file."""

    path: str
    text: str
    shape: ShapePlan
    runs: tuple[Run, ...]


class MoeTable(Exporter):
    """What the exporters of both runtimes share: everything but names, dtypes and the rule without a table."""

    runtime: str
    runtime_version: str
    markdown_file: str
    own_notes: tuple[str, ...]
    """What to know before a table serves."""
    baseline: str
    """What the runtime runs without a table, by its name in a plan."""
    dtypes: Mapping[str, str]
    """How file names spell a workload's dtype; empty where they do not."""

    @abstractmethod
    def path(self, layer: Layer, gpu: str, triton: str) -> str:
        """Below the folder that the runtime is told of, for the GPU of that name and the Triton of that version."""

    @abstractmethod
    def row(self, config: MoeConfig, layer: Layer) -> Row:
        """:raises MegatuneError: when the runtime would run something else."""

    @abstractmethod
    def default(self, layer: Layer, tokens: int) -> Row:
        """What the runtime runs without a table."""

    @abstractmethod
    def changes(self, layer: Layer) -> Iterable[int]:
        """Every number of tokens that may be the first of another row of ``default``."""

    def head(self, triton: str) -> Mapping[str, str]:
        """What a file holds before its rows."""
        return {}

    def refuse(self, layer: Layer) -> None:
        """:raises MegatuneError: when the runtime has no table for such experts."""
        if layer.dtype not in self.dtypes:
            known = ", ".join(self.dtypes)
            raise MegatuneError(f"{self.runtime} has no table of its own for {layer.dtype}; it has them for {known}")

    def files(self, plan: Plan) -> dict[str, str]:
        hardware = plan.content.target.hardware
        if hardware["arch"] not in ARCHITECTURES:
            raise MegatuneError(
                f"{self.name}: what {self.runtime} runs without a table is known of {', '.join(ARCHITECTURES)}, and "
                f"the plan holds for {hardware['arch']}"
            )
        found = [(op, shape) for op in plan.content.operators for shape in op.shapes if is_moe(shape)]
        if not found:
            known = ", ".join(operator.name for operator in plan.content.operators)
            raise MegatuneError(f"{self.name}: the plan has no shape with the dims experts and width; it has {known}")
        require_measured(plan, [shape for _, shape in found], self.name)
        tables: dict[str, Table] = {}
        refused: dict[str, list[str]] = {}
        for operator, shape in found:
            try:
                table = self._table(shape, operator.baselines, hardware["gpu"])
            except MegatuneError as error:
                refused.setdefault(str(error), []).append(_label(shape))
                continue
            other = tables.setdefault(table.path, table)
            if other.text != table.text:
                raise MegatuneError(
                    f"{self.name}: {_label(other.shape)} and {_label(shape)} are one file to {self.runtime}, "
                    f"{table.path}, and the plan decides otherwise for each: plan one of them"
                )
        if not tables:
            why = "; ".join(
                f"{shapes[0]}{f' and {len(shapes) - 1} more' if shapes[1:] else ''}: {reason}"
                for reason, shapes in refused.items()
            )
            raise MegatuneError(f"{self.name}: no shape of the plan has a table: {why}")
        skipped = [f"{shape}: {reason}" for reason, shapes in refused.items() for shape in shapes]
        lines = self._lines(plan, list(tables.values()), skipped)
        return {table.path: table.text for table in tables.values()} | {self.markdown_file: "\n".join(lines) + "\n"}

    def _table(self, shape: ShapePlan, baselines: Sequence[str], gpu: str) -> Table:
        layer = layer_of(shape)
        if shape.world != 1:
            raise MegatuneError("a table is of the experts of one rank, and the plan's world is not 1")
        if self.baseline not in baselines:
            raise MegatuneError(
                f"where stock serves, a table must hold what {self.runtime} runs without one, so the plan must be "
                f"compared with {self.baseline}; it has {', '.join(baselines)}"
            )
        self.refuse(layer)
        configs = [config_of(band.decision) for band in shape.bands if band.decision.kind == "config"]
        if not configs:
            raise MegatuneError("stock serves any number of tokens, and needs no table")
        tritons = sorted({config.triton_version for config in configs})
        if len(tritons) > 1:
            raise MegatuneError(f"its configs are of several versions of Triton, {' and '.join(tritons)}")
        runs = tuple(_joined(run for band in shape.bands for run in self._runs(layer, band)))
        guarded = guard_rows([(run.lo, run.hi, run.row) for run in runs])
        rows = {str(tokens): row for tokens, row in guarded.items()}
        text = json.dumps({**self.head(tritons[0]), **rows}, indent=4) + "\n"
        _check(text, runs)
        return Table(self.path(layer, gpu, tritons[0]), text, shape, runs)

    def _runs(self, layer: Layer, band: Band) -> Iterator[Run]:
        decision = band.decision
        if decision.kind == "config":
            row = self.row(config_of(decision), layer)
            yield Run(band.tokens_lo, band.tokens_hi, row, stock=False, points=band.points)
            return
        inside = {tokens for tokens in self.changes(layer) if tokens > band.tokens_lo and band.covers(tokens)}
        starts = [band.tokens_lo, *sorted(inside)]
        ends = [start - 1 for start in starts[1:]]
        for lo, hi in zip(starts, [*ends, band.tokens_hi], strict=True):
            points = tuple(p for p in band.points if lo <= p.tokens and (hi is None or p.tokens <= hi))
            yield Run(lo, hi, self.default(layer, lo), stock=True, points=points)

    def _lines(self, plan: Plan, tables: Sequence[Table], skipped: Sequence[str]) -> Iterator[str]:
        own = notes([table.shape for table in tables], self.own_notes)
        runtime = Runtime(name=self.runtime, version=self.runtime_version)
        yield from heading("Fused-MoE tables", runtime, PlanSource.of(plan), own)
        for table in tables:
            yield ""
            yield f"## {table.path}"
            yield ""
            yield f"{_label(table.shape)}."
            yield ""
            yield "| tokens | row | measured at | µs | fastest baseline, µs | provenance |"
            yield "|---:|---|---|---|---|---|"
            yield from map(_line, table.runs)
        yield from left_out(skipped)


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Neighbours with the same row as one, if both are stock's or neither is."""
    last: Run | None = None
    for run in runs:
        if last is not None and (last.row, last.stock) == (run.row, run.stock):
            last = replace(last, hi=run.hi, points=last.points + run.points)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _check(text: str, runs: Sequence[Run]) -> None:
    """Read the file as the runtimes do and compare, where a nearest key could be another run's.

    :raises MegatuneError: naming the first number of tokens that would get another row.
    """
    rows = {int(key): row for key, row in json.loads(text).items() if key != "triton_version"}
    between = [(a + b) // 2 + more for a, b in pairwise(rows) for more in (0, 1)]
    for tokens in sorted({*rows, *between, 2 * max(rows)}):
        run = next(run for run in runs if run.lo <= tokens and (run.hi is None or tokens <= run.hi))
        if nearest_row(rows, tokens) != run.row:
            raise MegatuneError(f"the table would give {tokens} tokens another row than the plan does")


def _label(shape: ShapePlan) -> str:
    return f"{shape.shape} {shape.dtype}{at_routing(shape.routing)}"


def _line(run: Run) -> str:
    tokens = f"{run.lo}+" if run.hi is None else str(run.lo) if run.lo == run.hi else f"{run.lo}-{run.hi}"
    what = "stock: " if run.stock else ""
    cells = (
        tokens,
        what + " ".join(f"{name}={value}" for name, value in run.row.items()),
        ", ".join(str(point.tokens) for point in run.points) or "-",
        ", ".join(f"{point.latency.median_us:.2f}" for point in run.points),
        ", ".join(f"{point.baseline_latency.median_us:.2f} {point.baseline}" for point in run.points),
        ", ".join(sorted({each for point in run.points for each in point.provenance})),
    )
    return f"| {' | '.join(cells)} |"
