"""The values of vLLM's stock low-latency GEMM table, from what was measured of vLLM's own kernel, or of projections.

The operator ``vllm-skinny-gemm`` tunes the very kernel that the table is for, beside what the table ships: its configs
are taken as they are, where they are faster than that. ``projection`` has kernels of Megatune's own; of those configs
that have a counterpart the tile shape is taken over.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping

from pydantic import ValidationError

from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Value
from megatune_planner.band_schema import CurvePoint
from megatune_planner.exporters import vllm_table_markdown
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Fields
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.installed import Takes
from megatune_planner.exporters.vllm_table_schema import MAX_TOKENS
from megatune_planner.exporters.vllm_table_schema import MIN_GAIN
from megatune_planner.exporters.vllm_table_schema import Entry
from megatune_planner.exporters.vllm_table_schema import MeasuredEntry
from megatune_planner.exporters.vllm_table_schema import NoEntry
from megatune_planner.exporters.vllm_table_schema import NotMapped
from megatune_planner.exporters.vllm_table_schema import Runtime
from megatune_planner.exporters.vllm_table_schema import SkinnyGemmConfig
from megatune_planner.exporters.vllm_table_schema import Source
from megatune_planner.exporters.vllm_table_schema import Table
from megatune_planner.exporters.vllm_table_schema import TableShape
from megatune_planner.exporters.vllm_table_schema import illegal
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

JSON_FILE = "vllm_low_latency_table.json"
MARKDOWN_FILE = "vllm_low_latency_table.md"

ADAPTER = "vllm-skinny-gemm"
ADAPTED = "skinny"
"""Its variant."""
SHIPPED = "shipped"
"""Its baseline: what the table has today."""
OPERATOR = "projection"
VARIANT = "simt"
BASELINE = "cublas"
TABLES = {
    "sm_90a": "KIMI_K3_PROJECTIONS_SM90",
    "sm_100a": "KIMI_K3_PROJECTIONS_SM100",
    "sm_103a": "KIMI_K3_PROJECTIONS",
}
"""Name of the table in vLLM's module, by architecture."""

_PARAMS = ("block", "rows", "k_unroll", "vector", "split_k", "static_k")
"""Of a simt config, what the table has to know."""
_FIELDS = ("block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")
"""Of a config of vLLM's kernel."""

KERNEL_FILE = "vllm/model_executor/kernels/linear/cute_dsl/_skinny_gemm.py"
KERNEL = {
    "CuteSkinnyGemm.__init__": Takes(
        (
            *("self", "element_type", "num_rows", "block_size", "outputs_per_block", "vector_width", "k_unroll"),
            *("has_residual", "use_pdl", "static_k"),
        )
    )
}
"""What the figures of the adapter rest on."""

NOTES = (
    "Latencies were measured on Megatune's own kernel of the same tile shape, not on vLLM's: compare the table with "
    "the one it replaces on the runtime itself before it serves.",
    "Entries were compared with cuBLAS alone: the runtime's own entries, dsv3_fused_a among them, were not measured.",
    "vLLM decides by platform whether a launch is programmatic; params.pdl says what was measured.",
)
"""Of shapes of ``projection``."""
ADAPTER_NOTES = (
    "Latencies of shapes of vllm-skinny-gemm are of vLLM's own kernel, compiled and launched as vLLM does, and entries "
    "are faster than what its table has there, where that is this kernel or cuBLAS.",
)

OVERLAPPED = {(6288, 7168), (1536, 128)}
"""Local shapes of KDA's projections at 8 ranks. vLLM runs both at once, past the table, in graphs of few tokens."""
OVERLAPPED_TOKENS = 14
"""The most tokens at which it does."""
OVERLAP_NOTE = (
    f"Up to {OVERLAPPED_TOKENS} tokens vLLM runs {' and '.join(f'{n}x{k}' for n, k in sorted(OVERLAPPED))} past the "
    "table in captured graphs: entries there gain nothing, and vllm-plugin leaves them out."
)


class VllmLowLatencyTable(Exporter):
    """``vllm_low_latency_table.json`` and the same to read: keyed by local (N, K) and exact tokens."""

    name = "vllm-low-latency-table"
    what = "values for the low-latency GEMM table of vLLM 0.33.0"
    runtime = "vllm"
    runtime_version = "0.33.0"
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "vllm/models/kimi_k3/nvidia/low_latency_gemm.py": dict.fromkeys(TABLES.values(), ANY),
        "vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py": {
            "SkinnyGemmConfig": Fields(tuple(SkinnyGemmConfig.model_fields))
        },
    }

    def expresses(self, workload: Workload, config: Config) -> bool:
        # Asked a million times by one plan: what is cheap to see comes first.
        if config.variant != VARIANT or workload.tokens > MAX_TOKENS:
            return False
        if workload.operator != OPERATOR or workload.dtype != "bf16":
            return False
        return not unmappable(config.variant, config.params, workload.tokens, workload["n"], workload["k"])

    def needs(self, plan: Plan) -> Names:
        adapts = any(operator.name == ADAPTER for operator in plan.content.operators)
        return {**self.relies_on, KERNEL_FILE: KERNEL} if adapts else self.relies_on

    def files(self, plan: Plan) -> dict[str, str]:
        try:
            table = _table(plan)
            # What was built is checked once more as what it will be read as.
            text = canonical_json(table.model_dump(mode="json")) + "\n"
            Table.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise MegatuneError(f"{self.name}: the plan gives no valid table: {first['msg']}") from error
        return {JSON_FILE: text, MARKDOWN_FILE: vllm_table_markdown.render(table)}


def unmappable(variant: str, params: Mapping[str, Value], tokens: int, n: int, k: int) -> list[str]:
    """One line for each reason why the table cannot name the config; empty when it can."""
    if tokens > MAX_TOKENS:
        return [f"the table ends at {MAX_TOKENS} tokens"]
    if variant not in (VARIANT, ADAPTED):
        return [f"vLLM's kernel has no counterpart of variant {variant}"]
    missing = [name for name in (_PARAMS if variant == VARIANT else _FIELDS) if name not in params]
    if missing:
        return [f"the config does not say {', '.join(missing)}"]
    if params.get("split_k", 1) != 1:
        return [f"vLLM's kernel cannot split K, the config has split_k={params['split_k']}"]
    try:
        return illegal(mapped(variant, params, tokens, k), n, k)
    except ValidationError as error:
        return [f"{part['loc'][0]}: {part['msg']}" for part in error.errors(include_url=False)]


def mapped(variant: str, params: Mapping[str, Value], tokens: int, k: int) -> SkinnyGemmConfig:
    """The config in vLLM's words: its own, or that of the same tile shape."""
    fields = (
        {name: params[name] for name in _FIELDS}
        if variant == ADAPTED
        else {
            "block_size": params["block"],
            "outputs_per_block": params["rows"],
            "k_unroll": params["k_unroll"],
            "vector_width": params["vector"],
            "static_k": params["static_k"],
        }
    )
    return SkinnyGemmConfig.model_validate(
        {**fields, "num_rows": tokens, "static_k": k if params["static_k"] else None}
    )


def _table(plan: Plan) -> Table:
    content = plan.content
    arch = content.target.hardware["arch"]
    if arch not in TABLES:
        raise MegatuneError(f"vLLM 0.33.0 has no low-latency table for {arch}; it has {', '.join(TABLES)}")
    found = {operator.name: operator for operator in content.operators if operator.name in (ADAPTER, OPERATOR)}
    if not found:
        plan.operator(OPERATOR)
    shapes: dict[tuple[int, int], TableShape] = {}
    skipped = []
    # What was measured on the kernel itself comes before what was measured on another.
    for name in (each for each in (ADAPTER, OPERATOR) if each in found):
        if BASELINE not in found[name].baselines:
            raise MegatuneError(
                f"the table needs the baseline {BASELINE}; the plan has {', '.join(found[name].baselines)}"
            )
        for shape in found[name].shapes:
            reason = _not_for_the_table(shape)
            if reason:
                skipped.append(f"{shape.shape} {shape.dtype}: {reason}")
            else:
                shapes.setdefault((shape.dims["n"], shape.dims["k"]), _shape(name, shape))
    if not shapes:
        raise MegatuneError(f"no shape of the plan fits the table: {'; '.join(skipped)}")
    notes = [*(ADAPTER_NOTES if ADAPTER in found else ()), *(NOTES if OPERATOR in found else ())]
    if any((shape.n, shape.k) in OVERLAPPED for shape in shapes.values()):
        notes.append(OVERLAP_NOTE)
    return Table(
        runtime=Runtime.model_validate({"table": TABLES[arch]}),
        plan=Source(
            name=content.name, digest=plan.digest, target=content.target.fingerprint.to_dict(), regime=content.regime
        ),
        notes=tuple(notes),
        shapes=tuple(shapes.values()),
        skipped=tuple(skipped),
    )


def _not_for_the_table(shape: ShapePlan) -> str:
    if shape.dtype != "bf16":
        return "the table holds bf16 only"
    if shape.measured_tokens[0] > MAX_TOKENS:
        return f"nothing was measured up to {MAX_TOKENS} tokens"
    return ""


def _shape(operator: str, shape: ShapePlan) -> TableShape:
    n, k = shape.dims["n"], shape.dims["k"]
    entries: list[Entry] = []
    cublas: list[NoEntry] = []
    kept: list[NoEntry] = []
    unmeasured: list[int] = []
    baseline_curve, shipped_curve = (shape.curve("baseline", name) for name in (BASELINE, SHIPPED))
    for tokens in range(1, MAX_TOKENS + 1):
        baseline, shipped = (curve.at(tokens) if curve else None for curve in (baseline_curve, shipped_curve))
        if baseline is None:
            unmeasured.append(tokens)
            continue
        point = _best_mappable(shape, tokens)
        if point is None:
            # No entry would mean cuBLAS, and nothing says that cuBLAS beats what the runtime has there.
            unmeasured.append(tokens)
            continue
        reason = _too_slow(point, baseline)
        if reason:
            cublas.append(NoEntry(tokens=tokens, reason=reason))
        elif shipped is not None and point.latency.high_us >= shipped.latency.low_us:
            kept.append(NoEntry(tokens=tokens, reason="nothing is faster beyond doubt than what vLLM's table has"))
        else:
            entries.append(_entry(point, baseline, shipped, k))
    return TableShape.model_validate(
        {
            "n": n,
            "k": k,
            "operator": operator,
            "entries": tuple(entries),
            "cublas": tuple(cublas),
            "kept": tuple(kept),
            "unmeasured": tuple(unmeasured),
            "not_mapped": tuple(_not_mapped(shape)),
        }
    )


def _best_mappable(shape: ShapePlan, tokens: int) -> CurvePoint | None:
    points = [point for curve in shape.curves if curve.kind != "baseline" and (point := curve.at(tokens))]
    n, k = shape.dims["n"], shape.dims["k"]
    able = [point for point in points if not unmappable(point.variant, point.params, tokens, n, k)]
    return min(able, key=lambda point: (point.latency.median_us, point.config), default=None)


def _too_slow(point: CurvePoint, baseline: CurvePoint) -> str:
    gain = 1 - point.latency.median_us / baseline.latency.median_us
    if gain <= 0:
        return "the best that the table can name is not faster"
    if gain < MIN_GAIN:
        return f"the best that the table can name saves {gain:.1%}, less than {MIN_GAIN:.0%}"
    if point.latency.high_us >= baseline.latency.low_us:
        return "the intervals of the best that the table can name and of cuBLAS overlap"
    return ""


def _entry(point: CurvePoint, baseline: CurvePoint, shipped: CurvePoint | None, k: int) -> Entry:
    return Entry(
        tokens=point.tokens,
        config=mapped(point.variant, point.params, point.tokens, k),
        measured=MeasuredEntry(
            variant=point.variant,
            params=point.params,
            stage=point.stage,
            provenance=point.provenance,
            latency=point.latency,
            baseline=baseline.variant,
            baseline_latency=baseline.latency,
            gain=1 - point.latency.median_us / baseline.latency.median_us,
            shipped_latency=shipped.latency if shipped is not None else None,
            evidence=(point.evidence, baseline.evidence, *((shipped.evidence,) if shipped is not None else ())),
        ),
    )


def _not_mapped(shape: ShapePlan) -> Iterator[NotMapped]:
    for band in shape.bands:
        if band.decision.kind == "stock":
            continue
        for point in band.points:
            if point.tokens > MAX_TOKENS:
                continue
            reasons = unmappable(
                band.decision.variant, band.decision.params, point.tokens, shape.dims["n"], shape.dims["k"]
            )
            if reasons:
                yield NotMapped(
                    tokens=point.tokens,
                    variant=band.decision.variant,
                    params=band.decision.params,
                    latency=point.latency,
                    reasons=tuple(reasons),
                )
