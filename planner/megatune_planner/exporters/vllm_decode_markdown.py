"""The tables of the exporter ``vllm-specialized-decode``, to read."""

from __future__ import annotations

from collections.abc import Iterator

from megatune_planner.exporters.reduction_markdown import heading
from megatune_planner.exporters.reduction_markdown import left_out
from megatune_planner.exporters.vllm_decode_schema import NextAttention
from megatune_planner.exporters.vllm_decode_schema import Table
from megatune_planner.exporters.vllm_decode_schema import Tables


def render(tables: Tables) -> str:
    """Markdown."""
    return "\n".join(_lines(tables)) + "\n"


def _lines(tables: Tables) -> Iterator[str]:
    yield from heading("Tables of the latency-specialised decode", tables.runtime, tables.plan, tables.notes)
    for table in tables.tables:
        yield ""
        yield from _table(table)
    for prefetch in tables.prefetch:
        yield ""
        yield from _prefetch(prefetch)
    yield from left_out(tables.skipped)


def _table(table: Table) -> Iterator[str]:
    yield f"## Width {table.width}, {table.world} ranks"
    yield ""
    yield "```python"
    yield f'{table.module}.{table.name}[{table.world}] = "{table.value}"'
    yield "```"
    yield ""
    yield f'vLLM ships "{table.shipped}".'
    yield ""
    yield "| tokens | reduction | decided by | measured at | provenance | because |"
    yield "|---:|---|---|---|---|---|"
    for each in table.stretches:
        cells = (
            each.tokens_lo if each.tokens_lo == each.tokens_hi else f"{each.tokens_lo}-{each.tokens_hi}",
            "two-stage" if each.two_stage else "full fan-out",
            each.source.replace("_", " "),
            ", ".join(map(str, each.measured)) or "-",
            ", ".join(each.provenance) or "-",
            each.reason,
        )
        yield f"| {' | '.join(map(str, cells))} |"
    if table.warnings:
        yield ""
        yield from (f"- {warning[0].upper()}{warning[1:]}." for warning in table.warnings)


def _prefetch(table: NextAttention) -> Iterator[str]:
    yield f"## Prefetch of the next attention, {table.world} ranks"
    yield ""
    yield "```python"
    yield f'{table.module}.{table.name}[{table.world}] = "{table.value}"'
    yield "```"
    yield ""
    yield f'vLLM ships "{table.shipped}". Measured chains: {"; ".join(table.chains)}.'
    yield ""
    yield "| tokens | MiB | carve-out | decided by | measured at | provenance | because |"
    yield "|---:|---:|---:|---|---|---|---|"
    for each in table.stretches:
        cells = (
            each.tokens_lo if each.tokens_lo == each.tokens_hi else f"{each.tokens_lo}-{each.tokens_hi}",
            each.mib,
            "-" if each.carveout is None else each.carveout,
            each.source,
            ", ".join(map(str, each.measured)) or "-",
            ", ".join(each.provenance) or "-",
            each.reason,
        )
        yield f"| {' | '.join(map(str, cells))} |"
