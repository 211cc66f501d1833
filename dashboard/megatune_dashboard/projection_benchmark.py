"""Benchmark ``projection``: what the tuned projections reach, from the shipped recordings and the plan they give.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from importlib.resources import files
from statistics import geometric_mean

from megatune_dashboard.bests import Best
from megatune_dashboard.bests import bests
from megatune_dashboard.bests import recordings_of
from megatune_dashboard.plans import plan_of
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_planner.plan import Plan
from megatune_tuner.recordings import Recording

OPERATOR = "projection"
MOST_TOKENS = 16
"""Tokens up to which the goals hold."""
LARGE_BYTES = 50_000_000
CUBLAS_GOAL = 1.25
VLLM_GOAL = 1.10
BANDWIDTH_GOAL = 0.95
VLLM_FIGURES = "vllm-0.33.0-h200.json"


def figures() -> list[Figure]:
    """Over all shipped recordings; a figure without a value says why."""
    recordings = recordings_of(OPERATOR)
    if not recordings:
        how = "no recording of projections is shipped with this installation"
        names = ("speedup over cuBLAS", "slowest band against cuBLAS", "speedup over vLLM 0.33.0")
        return [Figure(name, None, "", "", None, "replayed", how) for name in (*names, "large weights")]
    made = []
    for recording in recordings:
        cells = bests(recording, OPERATOR)
        where = f"recording {recording.name}, {recording.about.target}"
        made += [
            _against_cublas(cells.values(), where),
            _slowest_band(plan_of(recording, OPERATOR), where),
            *_against_vllm(cells, recording, where),
            *_bandwidth(cells.values(), recording, where),
            _busy(recording, where),
        ]
    return made


def _against_cublas(cells: Iterable[Best], where: str) -> Figure:
    small = [best for best in cells if best.workload.tokens <= MOST_TOKENS]
    value = geometric_mean(best.speedup for best in small)
    how = f"geometric mean over {len(small)} cells, tokens 1 to {MOST_TOKENS}; {where}"
    return Figure("speedup over cuBLAS", value, "x", f">= {CUBLAS_GOAL:.2f}", value >= CUBLAS_GOAL, "replayed", how)


def _slowest_band(plan: Plan, where: str) -> Figure:
    ratios = [
        point.baseline_latency.median_us / point.latency.median_us
        for operator_plan in plan.content.operators
        for shape in operator_plan.shapes
        for band in shape.bands
        for point in band.points
    ]
    value = min(ratios)
    how = f"least ratio of the baseline's time to the decision's over {len(ratios)} measured tokens of bands; {where}"
    return Figure("slowest band against cuBLAS", value, "x", ">= 1.00", value >= 1.0, "replayed", how)


def _against_vllm(cells: dict[Workload, Best], recording: Recording, where: str) -> list[Figure]:
    text = files("megatune_dashboard").joinpath("data", VLLM_FIGURES).read_text("utf-8")
    served = json.loads(text)
    made = []
    for key, what in (
        ("served_us", "its kernel launched without programmatic launch"),
        ("served_pdl_us", "its kernel launched programmatically, as it serves"),
    ):
        ratios = []
        for cell in served["cells"]:
            workload = operator(OPERATOR).workload({"n": cell["n"], "k": cell["k"]}, cell["tokens"])
            if workload in cells:
                theirs = cell[key] if cell[key] is not None else cells[workload].baseline_us
                ratios.append(theirs / cells[workload].tuned_us)
        name = f"speedup over vLLM 0.33.0, {what}"
        same = recording.about.target.hardware.gpu == served["gpu"]
        if not ratios or not same:
            how = f"the figures are of {served['gpu']}, or the recording lacks their cells; {where}"
            made.append(Figure(name, None, "x", f">= {VLLM_GOAL:.2f}", None, "imported", how))
            continue
        value = geometric_mean(ratios)
        how = f"geometric mean over {len(ratios)} cells; {served['how']}; {where}"
        made.append(Figure(name, value, "x", f">= {VLLM_GOAL:.2f}", value >= VLLM_GOAL, "imported", how))
    return made


def _bandwidth(cells: Iterable[Best], recording: Recording, where: str) -> list[Figure]:
    copy = recording.about.facts.get("copy_bytes_a_us")
    large = [
        best
        for best in cells
        if best.workload.tokens <= MOST_TOKENS and operator(OPERATOR).rotating_bytes(best.workload) >= LARGE_BYTES
    ]
    goal = f">= {BANDWIDTH_GOAL:.0%}"
    least, reach = "large weights: least share of a copy's bandwidth", "large weights: cells that reach the goal"
    if copy is None or not large:
        how = f"the recording has no copy's bandwidth or no weights of {LARGE_BYTES / 1e6:g} MB; {where}"
        return [Figure(least, None, "%", goal, None, "replayed", how)]
    shares = {best.workload: operator(OPERATOR).rotating_bytes(best.workload) / best.tuned_us / copy for best in large}
    worst = min(shares, key=lambda workload: shares[workload])
    reached = sum(share >= BANDWIDTH_GOAL for share in shares.values())
    how = f"{worst}; weights' bytes a µs of the best against {copy / 1e6:.3f} TB/s of a copy, read and written; {where}"
    count = f"{reached} of {len(shares)} cells of at least {LARGE_BYTES / 1e6:g} MB, tokens 1 to {MOST_TOKENS}; {where}"
    value = shares[worst]
    return [
        Figure(least, 100 * value, "%", goal, value >= BANDWIDTH_GOAL, "replayed", how),
        Figure(reach, 100 * reached / len(shares), "%", "", None, "replayed", count),
    ]


def _busy(recording: Recording, where: str) -> Figure:
    share = recording.about.facts.get("measuring_share", math.nan)
    name = "share of wall time the GPU was measuring"
    if math.isnan(share):
        return Figure(name, None, "%", "", None, "measured", f"the recording does not say; {where}")
    how = f"while recording, artifacts built ahead by a process pool; {where}"
    return Figure(name, 100 * share, "%", "", None, "measured", how)


PROJECTION = Benchmark(OPERATOR, "tuned projections against cuBLAS, vLLM and the memory's bandwidth", figures)
