"""The table of the exporter ``vllm-low-latency-table``, to read."""

from __future__ import annotations

from collections.abc import Iterator

from megatune_planner.exporters.vllm_table_schema import Entry
from megatune_planner.exporters.vllm_table_schema import Table
from megatune_planner.exporters.vllm_table_schema import TableShape


def render(table: Table) -> str:
    """Markdown."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    hardware, toolchain = table.plan.target["hardware"], table.plan.target["toolchain"]
    yield f"# Low-latency GEMM table for vLLM {table.runtime.version}"
    yield ""
    yield f"Values for `{table.runtime.module}.{table.runtime.table}`, keyed by local (N, K) and exact tokens."
    yield ""
    yield f"- Plan: {table.plan.name}, digest {table.plan.digest}"
    yield f"- Target: {hardware['gpu']}, driver {toolchain['driver']}, CUDA {toolchain['cuda']}, DSL {toolchain['dsl']}"
    yield f"- Regime: {table.plan.regime}"
    yield f"- An entry saves at least {table.min_gain:.0%} of cuBLAS's time; where the best saves less, cuBLAS serves."
    yield from (f"- {note}" for note in table.notes)
    for shape in table.shapes:
        yield ""
        yield f"## N={shape.n}, K={shape.k}"
        yield ""
        yield from _shape(shape)
    if table.skipped:
        yield ""
        yield "## Left out"
        yield ""
        yield from (f"- {line}" for line in table.skipped)


def _shape(shape: TableShape) -> Iterator[str]:
    # Of Megatune's own kernels nobody knows what vLLM's table takes.
    adapted = shape.operator == "vllm-skinny-gemm"
    columns = ["tokens", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k", "µs", "cuBLAS µs"]
    columns += ["saves", *(["vLLM's table µs"] if adapted else [])]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---:|' * len(columns)}"
    rest = " |" * (len(columns) - 2)
    rows = {entry.tokens: _entry(entry, adapted=adapted) for entry in shape.entries}
    rows |= {line.tokens: f"| {line.tokens} | cuBLAS: {line.reason} |{rest}" for line in shape.cublas}
    rows |= {line.tokens: f"| {line.tokens} | as it is: {line.reason} |{rest}" for line in shape.kept}
    yield from (rows[tokens] for tokens in sorted(rows))
    if shape.unmeasured:
        yield ""
        tokens = ", ".join(map(str, shape.unmeasured))
        yield f"Nothing that the table can name was measured, so left as they are: {tokens} tokens."
    if shape.not_mapped:
        yield ""
        yield "The plan itself chooses what this table cannot name:"
        yield ""
        for line in shape.not_mapped:
            params = "".join(f" {name}={value}" for name, value in sorted(line.params.items()))
            yield (
                f"- {line.tokens} tokens, {line.latency.median_us:.2f} µs: {line.variant}{params} "
                f"({'; '.join(line.reasons)})"
            )


def _entry(entry: Entry, *, adapted: bool) -> str:
    config, measured = entry.config, entry.measured
    shipped = measured.shipped_latency
    cells = (
        entry.tokens,
        config.block_size,
        config.outputs_per_block,
        config.k_unroll,
        config.vector_width,
        "None" if config.static_k is None else config.static_k,
        f"{measured.latency.median_us:.2f}",
        f"{measured.baseline_latency.median_us:.2f}",
        f"{measured.gain:.1%}",
        *((f"{shipped.median_us:.2f}" if shipped else "not measured",) if adapted else ()),
    )
    return f"| {' | '.join(map(str, cells))} |"
