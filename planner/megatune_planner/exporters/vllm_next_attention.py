"""The prefetch table of vLLM's latency-specialised decode for Kimi K3, from what was measured of chains.

While the experts run, the backend of vLLM 0.33.0 prefetches the weights of the next layer's attention. How deep is
looked up by ranks and tokens in ``runtime/prefetch.NEXT_ATTENTION``: MiB, a dot and the carve-out. What it does not
name is not prefetched. One entry speaks for every attention layer, KDA and MLA, whatever the bus is idle for, so that

1. at tokens at which every measured chain of these ranks says what to do, the least depth of them serves: it arrives in
   the shortest idle phase that was measured, and it is 0 where prefetch does not win in one of them;
2. where nothing was measured, what the measured tokens on both sides agree on does;
3. otherwise what vLLM ships.

A chain's depth is that of the best config that vLLM's kernel can run, where it beats the chain without prefetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.prefetch.space import PLAIN
from megatune_kernels.prefetch.space import PREFETCH
from megatune_kernels.prefetch.space import ROWS
from megatune_kernels.projection.shapes import projection_shapes
from megatune_kernels.space import Config
from megatune_planner.band_schema import CurvePoint
from megatune_planner.depths import DEPTH
from megatune_planner.depths import OPERATOR
from megatune_planner.depths import depth_of
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.batch_table import MAX_BATCH
from megatune_planner.exporters.measured import require_links
from megatune_planner.exporters.measured import require_measured
from megatune_planner.exporters.vllm_decode_schema import NextAttention
from megatune_planner.exporters.vllm_decode_schema import PrefetchSource
from megatune_planner.exporters.vllm_decode_schema import PrefetchStretch
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

MODULE = "vllm.models.kimi_k3.nvidia.specialized_decode.runtime.prefetch"
SHIPPED = MappingProxyType({8: "1:96.100,2-3:96,4-7:64,8:32", 16: "1-8:1024"})
MODEL = "Kimi-K3"
EXPORTER = "vllm-specialized-decode"
"""Whose best config is looked up in a plan."""
KINDS = MappingProxyType({"KDA": ("kda_in_proj", "kda_f_b"), "MLA": ("fused_qkv_a", "q_b", "mla_gate")})
"""By kind of attention, the projections that begin it, as the runtime reads them."""
STAND_IN = "idle_ns"
REDUCTION = "width"
"""Dims that say what the idle phase of a chain is."""
CHUNK_KIB = 16
"""Of a request of the runtime's kernel, which begins with the first, asks for bytes as they lie and has blocks of its
own."""

NOTES = (
    "Prefetch was measured on Megatune's own kernel, idle phase and projections; vLLM's has 32 blocks, in which every "
    "thread asks, and runs beside the experts: compare its time a step with its own table before it serves.",
    "A depth beyond the weights that were measured goes on into the attention's next ones.",
)


@dataclass(frozen=True)
class _Depth:
    """What a chain, or all of them, say at some tokens."""

    mib: int
    """0: no prefetch."""
    carveout: int | None
    """None: the driver's own choice, or no prefetch."""
    chain: str = ""
    """Whose depth it is."""

    @property
    def value(self) -> tuple[int, int | None]:
        return (self.mib, self.carveout)


def expresses(workload: Workload, config: Config) -> bool:
    """Whether the table can say the config, its blocks left aside."""
    return (
        workload.operator == OPERATOR
        and config.variant == PREFETCH
        and config.params.get("start_percent") == 0
        and config.params.get("chunk_kib") == CHUNK_KIB
        and config.params.get("walk", ROWS) == ROWS
    )


def tables(plan: Plan, exporter: str) -> tuple[list[NextAttention], list[str]]:
    """The tables of the plan's chains, and why others have none.

    :raises MegatuneError: when the plan has no chains, or counts figures as evidence that no GPU has shown.
    """
    shapes = plan.operator(OPERATOR).shapes
    require_measured(plan, shapes, exporter)
    require_links(plan, exporter)
    found, skipped = [], []
    of_any: set[str] = set()
    for world in SHIPPED:
        kinds = chains(plan, world)
        of_any |= {shape.shape for each in kinds.values() for shape in each}
        missing = [kind for kind, each in kinds.items() if not each]
        if len(missing) == len(KINDS):
            continue
        if missing:
            skipped.append(f"prefetch at {world} ranks: no chain of {' and '.join(missing)} layers was measured")
            continue
        try:
            found.append(_table(kinds, world))
        except MegatuneError as error:
            skipped.append(str(error))
    skipped += [
        f"prefetch {s.shape}: no attention of {MODEL} at 8 or 16 ranks" for s in shapes if s.shape not in of_any
    ]
    return found, skipped


def chains(plan: Plan, world: int) -> dict[str, list[ShapePlan]]:
    """The plan's chains of each kind of attention at so many ranks: behind the ranks' own reduction where that was
    measured, else behind stand-ins of whatever length."""
    shapes = {shape.name: shape for shape in projection_shapes(model(MODEL), Parallel(world))}
    found = {}
    for kind, names in KINDS.items():
        consumers: dict[str, int] = {}
        for number, name in enumerate(names, start=1):
            consumers |= {f"n{number}": shapes[name].n, f"k{number}": shapes[name].k}
        alike = [
            shape
            for shape in sorted(plan.operator(OPERATOR).shapes, key=lambda each: each.dims.get(STAND_IN, 0))
            if {name: size for name, size in shape.dims.items() if name not in (STAND_IN, REDUCTION)} == consumers
        ]
        grouped = [shape for shape in alike if shape.world == world and REDUCTION in shape.dims]
        found[kind] = grouped or [shape for shape in alike if STAND_IN in shape.dims]
    return found


def _phase(shape: ShapePlan) -> str:
    if STAND_IN in shape.dims:
        return f"idle for {shape.dims[STAND_IN]} ns"
    return f"behind a reduction of width {shape.dims[REDUCTION]}"


@dataclass(frozen=True)
class _Decided:
    tokens: int
    depth: _Depth
    source: PrefetchSource
    reason: str


def _table(kinds: dict[str, list[ShapePlan]], world: int) -> NextAttention:
    named = [(f"{kind} {_phase(shape)}", shape) for kind, each in kinds.items() for shape in each]
    known: dict[int, _Depth] = {}
    for tokens in range(1, MAX_BATCH + 1):
        said = [_depth(name, shape, tokens) for name, shape in named]
        depths = [each for each in said if each is not None]
        if len(depths) == len(named):
            known[tokens] = min(depths, key=lambda each: (each.mib, each.carveout or 0))
    if not known:
        names = ", ".join(name for name, _ in named)
        raise MegatuneError(
            f"prefetch at {world} ranks: there are no tokens at which all of {names} were measured with chunks of "
            f"{CHUNK_KIB} KiB from the beginning of the phase"
        )
    shipped = batch_table.parse(SHIPPED[world])
    decided = [_decide(known, tokens, shipped.get(tokens), len(named)) for tokens in range(1, MAX_BATCH + 1)]
    meant: dict[int, batch_table.Value] = {}
    for each in decided:
        if each.depth.mib:
            mib, carveout = each.depth.value
            meant[each.tokens] = mib if carveout is None else (mib, carveout)
    return NextAttention.model_validate(
        {
            "module": MODULE,
            "world": world,
            "value": batch_table.spell(meant),
            "shipped": SHIPPED[world],
            "chains": tuple(shape.shape for _, shape in named),
            "stretches": tuple(_stretches(decided, [shape for _, shape in named], known)),
        }
    )


def _depth(name: str, shape: ShapePlan, tokens: int) -> _Depth | None:
    """None where the chain was not measured, or only with what the table cannot say."""
    if tokens not in shape.measured_tokens:
        return None
    decision = shape.band(tokens).decision
    point = _expressible(shape, tokens)
    if point is None:
        # Where no prefetch wins, one that the table can say does not either.
        return _Depth(0, None, name) if not depth_of(decision) and _of_variant(shape, tokens) else None
    is_served = decision.kind == "config" and decision.config == point.config
    if not is_served and not all(point.latency.high_us < each.latency.low_us for each in _without(shape, tokens)):
        return _Depth(0, None, name)
    return _Depth(int(point.params[DEPTH]), int(point.params["carveout"]), name)


def _of_variant(shape: ShapePlan, tokens: int) -> CurvePoint | None:
    curve = shape.curve("variant", PREFETCH)
    return curve.at(tokens) if curve else None


def _expressible(shape: ShapePlan, tokens: int) -> CurvePoint | None:
    curve = shape.curve("exporter", EXPORTER)
    return curve.at(tokens) if curve else None


def _without(shape: ShapePlan, tokens: int) -> Iterator[CurvePoint]:
    """The chain without prefetch: with programmatic launches or not, and the baseline."""
    for curve in shape.curves:
        if curve.kind == "baseline" or (curve.kind, curve.name) == ("variant", PLAIN):
            point = curve.at(tokens)
            if point is not None:
                yield point


def _decide(known: dict[int, _Depth], tokens: int, shipped: batch_table.Value | None, count: int) -> _Decided:
    if tokens in known:
        depth = known[tokens]
        what = f"{depth.mib} MiB" if depth.mib else "prefetch does not win"
        return _Decided(tokens, depth, "measured", f"the least of {count} chains, {depth.chain}: {what}")
    below, above = [each for each in known if each < tokens], [each for each in known if each > tokens]
    if below and above and known[below[-1]].value == known[above[0]].value:
        return _Decided(tokens, known[above[0]], "neighbours", "the measured tokens around it say the same")
    between = "between measured tokens that do not agree" if below and above else "not measured"
    numbers = shipped if isinstance(shipped, tuple) else (int(shipped or 0),)
    theirs = _Depth(numbers[0], numbers[1] if len(numbers) > 1 else None)
    return _Decided(tokens, theirs, "shipped", f"{between}; as vLLM ships it")


def _stretches(
    decided: Sequence[_Decided], shapes: Sequence[ShapePlan], known: dict[int, _Depth]
) -> Iterator[PrefetchStretch]:
    for (value, source, reason), group in groupby(decided, key=lambda d: (d.depth.value, d.source, d.reason)):
        tokens = [each.tokens for each in group]
        measured = [each for each in tokens if each in known]
        points = [point for shape in shapes for each in measured for point in _evidence(shape, each)]
        yield PrefetchStretch(
            tokens_lo=tokens[0],
            tokens_hi=tokens[-1],
            mib=value[0],
            carveout=value[1],
            source=source,
            reason=reason,
            measured=tuple(measured),
            provenance=tuple(sorted({point.provenance for point in points})),
            evidence=tuple(sorted({point.evidence for point in points})),
        )


def _evidence(shape: ShapePlan, tokens: int) -> Iterator[CurvePoint]:
    point = _expressible(shape, tokens) or _of_variant(shape, tokens)
    yield from (*_without(shape, tokens), *([point] if point else []))
