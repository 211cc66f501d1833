"""Benchmark ``experts``: Kimi K3's routed experts against the published figures of Marlin, and against the time in
which a copy reads the weights of the distinct experts once, from the shipped recordings.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping

from megatune_dashboard.bests import recordings_of
from megatune_db.records import Provenance
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_tuner.recordings import Recording

OPERATOR = "experts"
ROUTING = "power_law_1.01"
MODEL = {"experts": 896, "k": 3584, "top": 16}
GPU = "H200"
PUBLISHED = {
    384: {1: 67.73, 2: 89.76, 4: 116.69, 8: 175.87, 16: 283.03, 32: 375.46, 64: 564.92},
    192: {1: 59.76, 2: 68.54, 4: 93.04, 8: 121.47, 16: 187.71, 32: 235.41, 64: 334.59},
}
"""By width of a rank's slice and tokens, µs of a layer: vLLM 0.24.0, Marlin with MXFP4 weights, BF16 activations, SiLU
in place of SiTU, one H200 SXM, routing power_law_1.01. Source: aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0),
systems/data/h200_sxm/moe/vllm/0.24.0/moe_perf.parquet."""
FEW_TOKENS = 16
FEW_GOAL = 2.0
MANY_GOAL = 1.5
FLOOR_TOKENS = 8
FLOOR_GOAL = 1.6
FEW = f"least speedup over published Marlin, 1 to {FEW_TOKENS} tokens"
MANY = f"least speedup over published Marlin, more than {FEW_TOKENS} tokens"
FLOOR = f"most times of what a copy takes for the weights, {FLOOR_TOKENS} tokens and more"
TORCH = "least speedup over torch"


def figures() -> list[Figure]:
    """Over all shipped recordings; a figure without a value says why."""
    recordings = recordings_of(OPERATOR)
    if not recordings:
        return _unknown("no recording of experts is shipped with this installation")
    return [figure for recording in recordings for figure in _of(recording)]


def _unknown(how: str) -> list[Figure]:
    return [
        Figure(FEW, None, "x", f">= {FEW_GOAL:.2f}", None, Provenance.REPLAYED, how),
        Figure(MANY, None, "x", f">= {MANY_GOAL:.2f}", None, Provenance.REPLAYED, how),
        Figure(FLOOR, None, "x", f"<= {FLOOR_GOAL:.2f}", None, Provenance.REPLAYED, how),
        Figure(TORCH, None, "x", "", None, Provenance.REPLAYED, how),
    ]


def _of(recording: Recording) -> Iterator[Figure]:
    where = f"recording {recording.name}, {recording.about.target}"
    times = dict(_bests(recording))
    alike = GPU in recording.about.target.hardware.gpu
    speedups = {
        workload: PUBLISHED[workload["width"]][workload.tokens] / tuned
        for workload, (tuned, _) in times.items()
        if alike and _is_published(workload)
    }
    few = {workload: ratio for workload, ratio in speedups.items() if workload.tokens <= FEW_TOKENS}
    many = {workload: ratio for workload, ratio in speedups.items() if workload.tokens > FEW_TOKENS}
    yield _extreme(FEW, few, FEW_GOAL, where, least=True)
    yield _extreme(MANY, many, MANY_GOAL, where, least=True)
    copy = recording.about.facts.get("copy_bytes_a_us")
    floors = {
        workload: tuned / (operator(OPERATOR).rotating_bytes(workload) / copy)
        for workload, (tuned, _) in times.items()
        if copy and workload.tokens >= FLOOR_TOKENS and _is_of_model(workload)
    }
    yield _extreme(FLOOR, floors, FLOOR_GOAL, where, least=False)
    torch = {workload: stock / tuned for workload, (tuned, stock) in times.items() if stock is not None}
    yield _extreme(TORCH, torch, None, where, least=True)


def _is_of_model(workload: Workload) -> bool:
    """Whether it is a slice of Kimi K3's experts at the routing that the goals are about."""
    dims = dict(workload.dims)
    return workload.routing == ROUTING and dims["width"] in PUBLISHED and all(dims[n] == MODEL[n] for n in MODEL)


def _is_published(workload: Workload) -> bool:
    return _is_of_model(workload) and workload.dtype == "mxfp4" and workload.tokens in PUBLISHED[workload["width"]]


def _bests(recording: Recording) -> Iterator[tuple[Workload, tuple[float, float | None]]]:
    """Of every cell the best config of its latest finals, and the best baseline where there is one, in µs."""
    baselines = operator(OPERATOR).baselines
    for workload in recording.workloads:
        if workload.operator != OPERATOR:
            continue
        found: tuple[float, float | None] | None = None
        for session in recording.finals(workload):
            measured = {config: one.median_us for config, one in session.items() if one.median_us is not None}
            tuned = [us for config, us in measured.items() if config.variant not in baselines]
            stock = [us for config, us in measured.items() if config.variant in baselines]
            if tuned:
                found = (min(tuned), min(stock, default=None))
        if found is not None:
            yield workload, found


def _extreme(name: str, ratios: Mapping[Workload, float], goal: float | None, where: str, *, least: bool) -> Figure:
    sign = ">=" if least else "<="
    wanted = f"{sign} {goal:.2f}" if goal is not None else ""
    if not ratios:
        return Figure(name, None, "x", wanted, None, Provenance.REPLAYED, f"no such cells in {where}")
    worst = (min if least else max)(ratios, key=ratios.__getitem__)
    value = ratios[worst]
    met = None if goal is None else (value >= goal if least else value <= goal)
    how = f"{len(ratios)} cells, the best of the finalists; this is {worst} {worst.routing}; {where}"
    return Figure(name, value, "x", wanted, met, Provenance.REPLAYED, how)


EXPERTS = Benchmark("experts", "Kimi K3's routed experts against published Marlin and the memory's floor", figures)
