"""Benchmark ``prefetch``: what weight prefetch and programmatic launch save, from the shipped recordings of chains.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from statistics import geometric_mean

from megatune_dashboard.bests import Best
from megatune_dashboard.bests import bests
from megatune_dashboard.bests import recordings_of
from megatune_dashboard.plans import plan_of
from megatune_db.records import Provenance
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_tuner.recordings import Recording

OPERATOR = "prefetch"
NONE = "none"
MODEL = "Kimi-K3"
TENSORS = (8, 16)
"""Ranks whose chains the goal is about."""
MOST_TOKENS = 8
GOAL = 1.15
SPEEDUP = "speedup over the chain without prefetch and programmatic launch"
SLOWEST = "slowest band against the chain without prefetch and programmatic launch"
GAINS: dict[str, Callable[[Config], bool]] = {
    "programmatic launch alone": lambda config: config.variant == "plain" and config.params["pdl"] is True,
    "prefetch alone": lambda config: config.variant == "prefetch" and config.params["pdl"] is False,
    "prefetch and programmatic launch together": lambda config: (
        config.variant == "prefetch" and config.params["pdl"] is True
    ),
}


def cells() -> dict[Workload, int]:
    """The chains on one GPU that the goal is about, with the ranks that have them; some are the same at both."""
    return {
        workload: tensor
        for tensor in reversed(TENSORS)
        for workload in operator(OPERATOR).workloads(model(MODEL), Parallel(tensor), range(1, MOST_TOKENS + 1))
        if workload.world == 1
    }


def figures() -> list[Figure]:
    """Over all shipped recordings of chains; a figure without a value says why."""
    recordings = recordings_of(OPERATOR)
    if not recordings:
        how = "no recording of prefetch is shipped with this installation"
        return [_speedup({}, how), _slowest(None, how), *_gains(None, how)]
    made = []
    for recording in recordings:
        where = f"recording {recording.name}, {recording.about.target}"
        made += [_speedup(bests(recording, OPERATOR), where), _slowest(recording, where), *_gains(recording, where)]
    return made


def _speedup(found: Mapping[Workload, Best], where: str) -> Figure:
    asked = cells()
    known = {workload: best for workload, best in found.items() if workload in asked}
    value, how = None, where
    if known:
        value = geometric_mean(best.speedup for best in known.values())
        counts = " and ".join(f"{sum(asked[one] == tensor for one in known)} at TP{tensor}" for tensor in TENSORS)
        how = (
            f"geometric mean over {len(known)} of {len(asked)} cells, {counts}, tokens 1 to {MOST_TOKENS}; the best of "
            f"the finalists against {NONE} among them; {where}"
        )
        if set(TENSORS) > {asked[one] for one in known}:
            how = f"chains of TP{' and TP'.join(map(str, TENSORS))} are needed: {how}"
    elif found:
        how = f"none of the {len(asked)} chains of {MODEL} is recorded; {where}"
    everywhere = {asked[one] for one in known} == set(TENSORS)
    met = value >= GOAL if value is not None and everywhere else None
    return Figure(SPEEDUP, value, "x", f">= {GOAL:.2f}", met, Provenance.REPLAYED, how)


def _slowest(recording: Recording | None, where: str) -> Figure:
    """The least ratio of the baseline's time to the decision's, at the measured tokens of the plan's bands."""
    ratios: list[float] = []
    if recording is not None:
        try:
            plan = plan_of(recording, OPERATOR)
        except NothingMeasured as error:
            where = f"{error}; {where}"
        else:
            bands = (band for shape in plan.operator(OPERATOR).shapes for band in shape.bands)
            ratios = [p.baseline_latency.median_us / p.latency.median_us for band in bands for p in band.points]
            where = f"least ratio of the baseline's time to the decision's over {len(ratios)} measured tokens; {where}"
    value = min(ratios, default=None)
    met = value >= 1.0 if value is not None else None
    return Figure(SLOWEST, value, "x", ">= 1.00", met, Provenance.REPLAYED, where)


def _gains(recording: Recording | None, where: str) -> Iterator[Figure]:
    """What each of the two saves, and both together: over the same cells, all measured by the same search."""
    asked = cells()
    ratios: dict[str, list[float]] = {name: [] for name in GAINS}
    for workload in (one for one in asked if recording is not None):
        assert recording is not None
        times = recording.times_us(workload)
        stock = [us for config, us in times.items() if config.variant == NONE]
        best = {name: min((us for c, us in times.items() if is_one(c)), default=None) for name, is_one in GAINS.items()}
        known = {name: us for name, us in best.items() if us is not None}
        if stock and len(known) == len(GAINS):
            for name, us in known.items():
                ratios[name].append(min(stock) / us)
    for name, found in ratios.items():
        value = geometric_mean(found) if found else None
        how = where
        if found:
            how = f"geometric mean over {len(found)} of {len(asked)} cells, the best of the search; {where}"
        elif recording is not None:
            how = f"no cell was searched with and without both; {where}"
        yield Figure(f"gain of {name}", value, "x", "", None, Provenance.REPLAYED, how)


PREFETCH = Benchmark(OPERATOR, "weight prefetch and programmatic launch in chains against neither", figures)
