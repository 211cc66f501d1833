"""Benchmark ``router``: the router front against torch's GEMM, sigmoid and top-k, from the shipped recordings.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from megatune_dashboard.bests import Best
from megatune_dashboard.bests import bests
from megatune_dashboard.bests import recordings_of
from megatune_db.records import Provenance
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_tuner.recordings import Recording

OPERATOR = "router_front"
MOST_TOKENS = 8
"""Tokens up to which the goal holds, for each of them."""
GOAL = 3.0
LEAST = "least speedup over torch"
MEAN = "speedup over torch"
SPLIT = "split against redundant"


def figures() -> list[Figure]:
    """Over all shipped recordings; a figure without a value says why."""
    recordings = recordings_of(OPERATOR)
    if not recordings:
        how = "no recording of router_front is shipped with this installation"
        return [
            Figure(LEAST, None, "x", f">= {GOAL:.2f}", None, Provenance.REPLAYED, how),
            *(Figure(name, None, "x", "", None, Provenance.REPLAYED, how) for name in (MEAN, SPLIT)),
        ]
    return [figure for recording in recordings for figure in _of(recording)]


def _of(recording: Recording) -> Iterator[Figure]:
    where = f"recording {recording.name}, {recording.about.target}"
    found = bests(recording, OPERATOR)
    few = {workload: best for workload, best in found.items() if workload.tokens <= MOST_TOKENS}
    least = min(few.values(), key=lambda best: best.speedup, default=None)
    value = least.speedup if least is not None else None
    how = f"{_counted(few)}, the best of the finalists against torch's among them"
    if least is not None:
        how += f"; least at {least.workload}"
    met = value >= GOAL if value is not None else None
    yield Figure(LEAST, value, "x", f">= {GOAL:.2f}", met, Provenance.REPLAYED, f"{how}; {where}")
    mean = geometric_mean(best.speedup for best in found.values()) if found else None
    how = f"geometric mean over {_counted(found)}"
    yield Figure(MEAN, mean, "x", "", None, Provenance.REPLAYED, f"{how}; {where}")
    ratios = list(_splits(recording))
    how = f"geometric mean over {len(ratios)} cells of a group, the best of each among the finalists"
    if not ratios:
        how = "ranks that share the rows were not recorded: that takes a group"
    value = geometric_mean(ratios) if ratios else None
    yield Figure(SPLIT, value, "x", "", None, Provenance.REPLAYED, f"{how}; {where}")


def _counted(found: dict[Workload, Best]) -> str:
    tokens = sorted({workload.tokens for workload in found})
    return f"{len(found)} cells, {tokens[0]} to {tokens[-1]} tokens" if tokens else "no cells"


def _splits(recording: Recording) -> Iterator[float]:
    """Time of ``redundant`` by that of ``split``, each cell's best of its latest finals."""
    for workload in recording.workloads:
        if workload.operator != OPERATOR or workload.world == 1:
            continue
        latest: dict[str, float] = {}
        for session in recording.finals(workload):
            for config, one in session.items():
                if one.median_us is not None:
                    latest[config.variant] = min(one.median_us, latest.get(config.variant, one.median_us))
        if {"redundant", "split"} <= set(latest):
            yield latest["redundant"] / latest["split"]


ROUTER = Benchmark("router", "the router front against torch's GEMM, sigmoid and top-k", figures)
