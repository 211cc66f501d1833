"""Benchmark ``router``: the router front against torch's GEMM, sigmoid and top-k, from the shipped recordings.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say. The
goal is of one GPU, where every rank computes all rows; whether ranks had better share them is a matter of groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from itertools import pairwise
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
CROSSOVER = "crossover of redundant and split"


@dataclass(frozen=True)
class _Shared:
    """A cell of a group in which both variants worked: the best of each among its latest finalists, in µs."""

    workload: Workload
    redundant_us: float
    split_us: float

    @property
    def gain(self) -> float:
        return self.redundant_us / self.split_us


def figures() -> list[Figure]:
    """Over all shipped recordings; a figure without a value says why."""
    found: list[Figure] = []
    for recording in recordings_of(OPERATOR):
        hardware = recording.about.target.hardware
        provenance = Provenance.EMULATED if recording.is_emulated else Provenance.REPLAYED
        where = f"recording {recording.name}, {recording.about.target}"
        found += _alone(recording, provenance, where)
        found += _group(recording, provenance, f"{where}, links {hardware.links}")
    missing = "no recording of router_front {} is shipped with this installation"
    named = {figure.figure for figure in found}
    if LEAST not in named:
        how = missing.format("on one GPU")
        found += [_figure(LEAST, None, Provenance.REPLAYED, how), _figure(MEAN, None, Provenance.REPLAYED, how)]
    if not any(name.startswith(SPLIT) for name in named):
        found.append(_figure(SPLIT, None, Provenance.REPLAYED, missing.format("of a group")))
    return found


def _figure(name: str, value: float | None, provenance: Provenance, how: str, unit: str = "x") -> Figure:
    goal = f">= {GOAL:.2f}" if name == LEAST else ""
    met = value >= GOAL if name == LEAST and value is not None else None
    return Figure(name, value, unit, goal, met, provenance, how)


def _alone(recording: Recording, provenance: Provenance, where: str) -> Iterator[Figure]:
    found = {workload: best for workload, best in bests(recording, OPERATOR).items() if workload.world == 1}
    if not found:
        return
    few = {workload: best for workload, best in found.items() if workload.tokens <= MOST_TOKENS}
    least = min(few.values(), key=lambda best: best.speedup, default=None)
    how = f"{_counted(few)}, the best of the finalists against torch's among them"
    if least is not None:
        how += f"; least at {least.workload}: {least.tuned_us:.2f} us against {least.baseline_us:.2f}"
    yield _figure(LEAST, least.speedup if least is not None else None, provenance, f"{how}; {where}")
    how = f"geometric mean over {_counted(found)}"
    yield _figure(MEAN, geometric_mean(best.speedup for best in found.values()), provenance, f"{how}; {where}")


def _counted(found: Mapping[Workload, Best]) -> str:
    tokens = sorted({workload.tokens for workload in found})
    return f"{len(found)} cells, {tokens[0]} to {tokens[-1]} tokens" if tokens else "no cells"


def _group(recording: Recording, provenance: Provenance, where: str) -> Iterator[Figure]:
    cells = sorted(
        _shared(recording), key=lambda cell: (cell.workload.shape, cell.workload.world, cell.workload.tokens)
    )
    for (shape, world), same in groupby(cells, key=lambda cell: (cell.workload.shape, cell.workload.world)):
        held = list(same)
        for cell in held:
            how = f"{cell.redundant_us:.2f} us against {cell.split_us:.2f}, the slowest rank's; {shape}; {where}"
            yield _figure(f"{SPLIT} at {cell.workload.tokens} tokens, world {world}", cell.gain, provenance, how)
        yield _crossover(held, world, provenance, f"{shape}; {where}")


def _shared(recording: Recording) -> Iterator[_Shared]:
    for workload in recording.workloads:
        sessions = recording.finals(workload) if workload.operator == OPERATOR and workload.world > 1 else []
        latest: dict[str, float] = {}
        # Times of two sessions are not compared: the latest speaks for the cell.
        for config, one in sessions[-1].items() if sessions else ():
            if one.median_us is not None:
                latest[config.variant] = min(one.median_us, latest.get(config.variant, one.median_us))
        if {"redundant", "split"} <= set(latest):
            yield _Shared(workload, latest["redundant"], latest["split"])


def _crossover(cells: Iterable[_Shared], world: int, provenance: Provenance, where: str) -> Figure:
    """The first tokens at which the other variant is faster than at the tokens before them."""
    held = list(cells)
    name = f"{CROSSOVER}, world {world}"
    for below, above in pairwise(held):
        if (below.gain > 1) != (above.gain > 1):
            winners = [("split" if cell.gain > 1 else "redundant") for cell in (below, above)]
            how = f"{winners[0]} up to {below.workload.tokens} tokens, {winners[1]} from there on; {where}"
            return _figure(name, float(above.workload.tokens), provenance, how, "tokens")
    winner = "split" if held[0].gain > 1 else "redundant"
    tokens = [cell.workload.tokens for cell in held]
    how = f"none: {winner} is faster at each of {', '.join(map(str, tokens))} tokens; {where}"
    return _figure(name, None, provenance, how, "tokens")


ROUTER = Benchmark("router", "the router front against torch's GEMM, sigmoid and top-k", figures)
