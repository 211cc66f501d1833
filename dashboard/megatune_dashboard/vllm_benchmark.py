"""Benchmark ``vllm``: vLLM's own kernel, tuned, against the table that it ships; and the errors of the serving model.

The kernel's figures follow from the shipped recordings of the operator ``vllm-skinny-gemm``, so any machine makes them
and none needs vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from statistics import geometric_mean

from megatune_dashboard.bests import recordings_of
from megatune_dashboard.plans import plan_of
from megatune_db.records import Provenance
from megatune_kernels.errors import MegatuneError
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.vllm_low_latency_table import JSON_FILE
from megatune_planner.serving import checks
from megatune_tuner.recordings import Recording

OPERATOR = "vllm-skinny-gemm"
CUBLAS = "cublas"
SHIPPED = "shipped"
GOAL = 1.07
MOST_TOKENS = 16
TP16_SHAPES = ((3216, 7168), (768, 7168), (1152, 1536), (768, 128), (7168, 384), (4224, 7168))
"""Local (N, K) of Kimi K3 over 16 ranks that vLLM 0.33.0's table for SM90 lacks."""
TABLE_CELLS = 47
"""Cells in which that table names a config of this kernel."""
SPEEDUP = "speedup over vLLM's shipped table"
LEAST = "least speedup over vLLM's shipped table in a cell"
FILLED = "TP16 shapes without an entry in vLLM's table that get one"
FILLED_SPEEDUP = "speedup over cuBLAS at the tokens that are filled in"


def figures() -> list[Figure]:
    """Over all shipped recordings of the kernel, then the serving model's; a figure without a value says why."""
    made: list[Figure] = []
    recordings = recordings_of(OPERATOR)
    if not recordings:
        how = f"no recording of {OPERATOR} is shipped with this installation"
        made += [*_against_table({}, how), *_filled(None, how)]
    for recording in recordings:
        where = f"recording {recording.name}, {recording.about.target}"
        made += [*_against_table(own_cells(recording), where), *_filled(recording, where)]
    return [*made, *checks.figures()]


def own_cells(recording: Recording) -> dict[Workload, float]:
    """The speedup of every cell in which vLLM's table names a config of this kernel, among its latest finalists.

    That config is one of the space too, and what a plan leaves where nothing is faster: no cell is below 1.
    """
    found = {}
    for workload in recording.workloads:
        if workload.operator != OPERATOR or workload.tokens > MOST_TOKENS:
            continue
        for session in recording.finals(workload):
            shipped = [one for config, one in session.items() if config.variant == SHIPPED]
            tuned = [
                us
                for config, one in session.items()
                if config.variant not in (SHIPPED, CUBLAS) and (us := one.median_us)
            ]
            # Where the table names no config, cuBLAS ran in its name, which is of no revision of the kernel.
            if tuned and shipped and shipped[0].revision and (us := shipped[0].median_us):
                # Times of two sessions are not compared: the latest speaks for the cell.
                found[workload] = us / min(us, *tuned)
    return found


def _against_table(cells: Mapping[Workload, float], where: str) -> Iterator[Figure]:
    goal = f">= {GOAL:.2f}"
    if not cells:
        yield Figure(SPEEDUP, None, "x", goal, None, Provenance.REPLAYED, where)
        yield Figure(LEAST, None, "x", "", None, Provenance.REPLAYED, where)
        return
    value = geometric_mean(cells.values())
    how = (
        f"geometric mean over {len(cells)} of the {TABLE_CELLS} cells in which the table names a config of its kernel, "
        f"{len({workload.shape for workload in cells})} shapes, "
        f"tokens {min(w.tokens for w in cells)} to {max(w.tokens for w in cells)}; "
        "the same kernel with the table's config among the finalists, which is left in "
        f"{sum(gain == 1 for gain in cells.values())} of them, as nothing was faster; {where}"
    )
    yield Figure(SPEEDUP, value, "x", goal, value >= GOAL, Provenance.REPLAYED, how)
    worst = min(cells, key=lambda workload: cells[workload])
    yield Figure(LEAST, cells[worst], "x", "", None, Provenance.REPLAYED, f"{worst}; {where}")


def _filled(recording: Recording | None, where: str) -> Iterator[Figure]:
    """What the export of the recording's plan says of shapes that vLLM's table lacks."""
    goal = f">= {len(TP16_SHAPES)}"
    gains: dict[tuple[int, int], Sequence[float]] = {}
    asked = 0
    if recording is not None:
        places = {(w["n"], w["k"]) for w in recording.workloads if w.operator == OPERATOR}
        asked = len(places & {*TP16_SHAPES})
        try:
            gains = _entries(recording)
        except MegatuneError as error:
            where = f"{error}; {where}"
    filled = {place: found for place, found in gains.items() if place in TP16_SHAPES and found}
    if not asked:
        how = where if recording is None else f"none of them is recorded; {where}"
        yield Figure(FILLED, None, "shapes", goal, None, Provenance.REPLAYED, how)
        yield Figure(FILLED_SPEEDUP, None, "x", "", None, Provenance.REPLAYED, how)
        return
    named = ", ".join(f"{n}x{k}" for n, k in filled) or "none"
    how = f"of {asked} that are recorded: {named}; {where}"
    yield Figure(FILLED, len(filled), "shapes", goal, len(filled) >= len(TP16_SHAPES), Provenance.REPLAYED, how)
    speedups = [1 / (1 - gain) for found in filled.values() for gain in found]
    value = geometric_mean(speedups) if speedups else None
    how = f"geometric mean over {len(speedups)} entries of {len(filled)} shapes; {where}"
    yield Figure(FILLED_SPEEDUP, value, "x", "", None, Provenance.REPLAYED, how)


def _entries(recording: Recording) -> dict[tuple[int, int], Sequence[float]]:
    """By (n, k), the share of cuBLAS's time that each entry of the exported table saves."""
    text = exporter("vllm-low-latency-table").files(plan_of(recording, OPERATOR))[JSON_FILE]
    return {
        (shape["n"], shape["k"]): [entry["measured"]["gain"] for entry in shape["entries"]]
        for shape in json.loads(text)["shapes"]
    }


VLLM = Benchmark("vllm", "vLLM's own kernel tuned against the table it ships, and the serving model's errors", figures)
