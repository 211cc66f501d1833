"""The tables of vLLM's latency-specialised decode for Kimi K3: of reductions, and of weight prefetch.

The backend of vLLM 0.33.0 looks up by ranks and tokens whether a reduction is two-stage, in two dicts named
``TWOSHOT``; what they do not name is full fan-out. It has no third choice and no fallback by performance, so that each
number of tokens gets one of the two:

1. Where a band says ``full_fanout`` or ``two_stage``, that, at the unmeasured tokens inside it too.
2. Where stock won at measured tokens, stock cannot be had: the faster of the two variants, where they are told apart.
3. Where nothing was measured and the plan says stock: what the measured tokens on both sides agree on.
4. Otherwise, and wherever the crossover of the two is contested, what vLLM ships.

How deep the next attention's weights are prefetched says ``vllm_next_attention``.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from pydantic import ValidationError

from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.crossover_schema import Crossover
from megatune_planner.depths import OPERATOR as PREFETCH
from megatune_planner.exporters import batch_table
from megatune_planner.exporters import vllm_next_attention
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.batch_table import MAX_BATCH
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Computes
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.reduction import FULL_FANOUT
from megatune_planner.exporters.reduction import OPERATOR as REDUCTION
from megatune_planner.exporters.reduction import TWO_STAGE
from megatune_planner.exporters.reduction import contested
from megatune_planner.exporters.reduction import label
from megatune_planner.exporters.reduction import reductions
from megatune_planner.exporters.reduction import trust
from megatune_planner.exporters.reduction import width_of
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.vllm_decode_markdown import render
from megatune_planner.exporters.vllm_decode_schema import Source
from megatune_planner.exporters.vllm_decode_schema import Stretch
from megatune_planner.exporters.vllm_decode_schema import Table
from megatune_planner.exporters.vllm_decode_schema import Tables
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

JSON_FILE = "vllm_specialized_decode.json"
MARKDOWN_FILE = "vllm_specialized_decode.md"

ARCHITECTURES = ("sm_100a", "sm_103a")
WORLDS = (8, 16)
PACKAGE = "vllm.models.kimi_k3.nvidia.specialized_decode.cutedsl"


@dataclass(frozen=True)
class Dict:
    """A ``TWOSHOT`` dict of the runtime."""

    module: str
    reduces: str
    shipped: MappingProxyType[int, str]
    from_tokens: MappingProxyType[int, int]
    """The least tokens at which the runtime heeds an entry everywhere, by world."""
    below: str
    """Why not below."""


DICTS = {
    7168: Dict(
        module=f"{PACKAGE}.oproj.prepared",
        reduces="the output projection's partials",
        shipped=MappingProxyType({8: "33-64:1", 16: "17-64:1"}),
        from_tokens=MappingProxyType({8: 1, 16: 9}),
        below="at 16 ranks vLLM fuses these reductions into the projection of most layers, without looking",
    ),
    3584: Dict(
        module=f"{PACKAGE}.moe.tail_runtime",
        reduces="the latent partials of the experts",
        shipped=MappingProxyType({8: "", 16: "33-64:1"}),
        from_tokens=MappingProxyType({8: 9, 16: 9}),
        below="vLLM looks into this table above 8 tokens only",
    ),
}
"""By width of the partials."""

NOTES = (
    "Latencies were measured on Megatune's own kernels, which write to each peer; vLLM's publish through the switch's "
    "multicast, which favours full fan-out: compare the tables with its own on the runtime before they serve.",
    f"Steps with more than {MAX_BATCH} tokens never look here. Prepared are 1 to 8, 16, 32 and {MAX_BATCH} tokens, and "
    f"what cudagraph_capture_sizes adds up to {MAX_BATCH}.",
    "The backend cannot fall back where stock measured faster: a plugin may wrap SpecializedDecode.plan to return None "
    "there, for whole steps and on every rank alike.",
    "Change the dicts in place before the model loads, in every process: all ranks must decide alike, or they hang.",
)


class VllmSpecializedDecode(Exporter):
    """``vllm_specialized_decode.json`` and the same to read: an entry of ``TWOSHOT`` for each width and world,
    and one of ``NEXT_ATTENTION`` for each world."""

    name = vllm_next_attention.EXPORTER
    what = "reduction and prefetch tables of the latency-specialised decode of vLLM 0.33.0, at 8 and 16 ranks"
    runtime = "vllm"
    runtime_version = "0.33.0"
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        **{
            f"{each.module.replace('.', '/')}.py": {"TWOSHOT": dict(each.shipped), "twoshot_batches": ANY}
            for each in DICTS.values()
        },
        f"{vllm_next_attention.MODULE.replace('.', '/')}.py": {
            "NEXT_ATTENTION": dict(vllm_next_attention.SHIPPED),
            "batch_table": ANY,
        },
        f"{PACKAGE.replace('.', '/')}/common/policy.py": {
            "batch_table": Computes(tuple((text, batch_table.parse(text)) for text in batch_table.SAMPLES))
        },
    }

    def expresses(self, workload: Workload, config: Config) -> bool:
        # Of reductions the bands and crossovers decide.
        return vllm_next_attention.expresses(workload, config)

    def files(self, plan: Plan) -> dict[str, str]:
        arch = plan.content.target.hardware["arch"]
        if arch not in ARCHITECTURES:
            raise MegatuneError(
                f"{self.name}: vLLM's latency-specialised decode runs on {' and '.join(ARCHITECTURES)}, and the plan "
                f"holds for {arch}"
            )
        names = {operator.name for operator in plan.content.operators}
        # A plan of neither is refused for its lack of reductions.
        found = () if names & {REDUCTION, PREFETCH} == {PREFETCH} else reductions(plan, self.name)
        tables, skipped = [], []
        for shape in found:
            try:
                tables.append(_table(shape))
            except MegatuneError as error:
                skipped.append(f"{label(shape)}: {error}")
        prefetch, more = vllm_next_attention.tables(plan, self.name) if PREFETCH in names else ([], [])
        skipped += more
        if not tables and not prefetch:
            raise MegatuneError(f"{self.name}: no shape of the plan has a table: {'; '.join(skipped)}")
        own = (NOTES if tables else NOTES[-1:]) + (vllm_next_attention.NOTES if prefetch else ())
        chains = plan.operator(PREFETCH).shapes if prefetch else ()
        built = Tables(
            runtime=Runtime(name=self.runtime, version=self.runtime_version),
            plan=PlanSource.of(plan),
            notes=notes((*found, *chains), own),
            tables=tuple(tables),
            prefetch=tuple(prefetch),
            skipped=tuple(skipped),
        )
        text = canonical_json(built.model_dump(mode="json")) + "\n"
        # What is written is read back first: the tables as the runtime reads them, batch by batch.
        Tables.model_validate_json(text)
        return {JSON_FILE: text, MARKDOWN_FILE: render(built)}


def _check(shape: ShapePlan) -> None:
    """:raises MegatuneError: when vLLM has no table for the shape, or none may rest on it."""
    if shape.world not in WORLDS:
        raise MegatuneError(f"vLLM has tables for {' and '.join(map(str, WORLDS))} ranks, and none for {shape.world}")
    if width_of(shape) not in DICTS or shape.dtype != "bf16":
        raise MegatuneError(f"vLLM has tables for bf16 of width {' and '.join(map(str, DICTS))}")
    crossover = _crossover(shape)
    if crossover is not None:
        trust(crossover)


def _crossover(shape: ShapePlan) -> Crossover | None:
    """Of the two variants; None when they were nowhere measured together."""
    pair = {FULL_FANOUT, TWO_STAGE}
    return next((each for each in shape.crossovers if {each.below, each.above} == pair), None)


@dataclass(frozen=True)
class _Decided:
    tokens: int
    two_stage: bool
    source: Source
    reason: str


def _table(shape: ShapePlan) -> Table:
    _check(shape)
    found = DICTS[width_of(shape)]
    shipped = batch_table.parse(found.shipped[shape.world])
    decided = [
        _heeded(_decide(shape, tokens, two_stage_shipped=bool(shipped.get(tokens))), found, shape.world)
        for tokens in range(1, MAX_BATCH + 1)
    ]
    try:
        return Table.model_validate(
            {
                "module": found.module,
                "world": shape.world,
                "width": width_of(shape),
                "value": batch_table.spell({each.tokens: 1 for each in decided if each.two_stage}),
                "shipped": found.shipped[shape.world],
                "stretches": tuple(_stretches(shape, decided)),
                "warnings": tuple(_warnings(shape)),
            }
        )
    except ValidationError as error:
        raise MegatuneError(f"no valid table: {error.errors(include_url=False)[0]['msg']}") from error


def _decide(shape: ShapePlan, tokens: int, *, two_stage_shipped: bool) -> _Decided:
    def shipped(reason: str) -> _Decided:
        return _Decided(tokens, two_stage_shipped, "shipped", f"{reason}; as vLLM ships it")

    band, crossover = shape.band(tokens), _crossover(shape)
    if crossover is not None and crossover.kind == "contested" and crossover.tokens_lo < tokens < crossover.tokens_hi:
        return shipped(contested(crossover))
    if band.decision.kind == "config":
        return _Decided(tokens, band.decision.variant == TWO_STAGE, "band", f"a band says {band.decision.variant}")
    if tokens in shape.measured_tokens:
        stock = next(point.baseline for point in band.points if point.tokens == tokens)
        reason = f"stock ({stock}) won, which this backend cannot run"
        variant = _at(shape, tokens)
        if variant is None:
            return shipped(f"{reason}, and the two variants are not told apart")
        reason = f"{reason}; of the two variants {variant} is faster"
        return _Decided(tokens, variant == TWO_STAGE, "faster_variant", reason)
    below = [each for each in shape.measured_tokens if each < tokens]
    above = [each for each in shape.measured_tokens if each > tokens]
    if not below or not above:
        return shipped(band.reason)
    sides = {_at(shape, below[-1]), _at(shape, above[0])}
    variant = sides.pop()
    if sides or variant is None:
        return shipped("between measured tokens that do not agree")
    return _Decided(tokens, variant == TWO_STAGE, "neighbours", f"the measured tokens around it say {variant}")


def _at(shape: ShapePlan, tokens: int) -> str | None:
    """The variant at measured tokens: the plan's, else the faster of the two; None where nothing tells."""
    decision = shape.band(tokens).decision
    if decision.kind == "config":
        return decision.variant
    crossover = _crossover(shape)
    points = crossover.points if crossover else ()
    return next((point.faster for point in points if point.tokens == tokens), None)


def _heeded(each: _Decided, found: Dict, world: int) -> _Decided:
    """Full fan-out, where the runtime would not heed an entry."""
    if not each.two_stage or each.tokens >= found.from_tokens[world]:
        return each
    return _Decided(each.tokens, False, "unheeded", f"{each.reason}, but {found.below}")


def _stretches(shape: ShapePlan, decided: Sequence[_Decided]) -> Iterator[Stretch]:
    points = {point.tokens: point for band in shape.bands for point in band.points}
    for (two_stage, source, reason), group in groupby(decided, key=lambda d: (d.two_stage, d.source, d.reason)):
        tokens = [each.tokens for each in group]
        inside = [points[each] for each in tokens if each in points]
        yield Stretch(
            tokens_lo=tokens[0],
            tokens_hi=tokens[-1],
            two_stage=two_stage,
            source=source,
            reason=reason,
            measured=tuple(point.tokens for point in inside),
            provenance=tuple(sorted({each for point in inside for each in point.provenance})),
            evidence=tuple(sorted({each for point in inside for each in point.evidence})),
        )


def _warnings(shape: ShapePlan) -> Iterator[str]:
    crossover = _crossover(shape)
    if crossover is None:
        yield "the two variants were nowhere measured together"
    elif crossover.kind == "contested":
        yield f"{contested(crossover)}: in between it stays as vLLM ships it; measure again"
    beyond = [tokens for tokens in shape.measured_tokens if tokens > MAX_BATCH]
    if beyond:
        numbers = ", ".join(map(str, beyond))
        yield f"measured at {numbers} tokens too, which no table can say: the mailboxes end at {MAX_BATCH}"
