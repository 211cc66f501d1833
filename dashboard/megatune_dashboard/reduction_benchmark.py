"""Benchmark ``reduction``: what the tuned reductions reach, by world, from the shipped recordings.

Every figure follows from recordings, so any machine makes it; what was measured, and on what, the recordings say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from importlib.resources import files
from typing import Any

from megatune_db.records import Provenance
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_tuner.bisection_benchmark import bisected
from megatune_tuner.bisection_benchmark import bisection_figures
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings

OPERATOR = "reduction"
WIDTH = 7168
ELEMENT_BYTES = 2
GOAL_WORLD = 2
FAN_OUT_GOALS_US = {1: 2.1, 8: 2.4, 16: 2.7, 32: 3.4, 64: 4.7}
"""What a plain CUDA program reaches on two H200s at width 7168, by tokens."""
BETTER_GOALS_US = {128: 7.8, 512: 22.7}
"""The same, of the better of the two variants."""
ONE_SHOT = "torch_one_shot"
ONE_SHOT_GOAL = 3.0
ONE_SHOT_TOKENS = 16
PUBLISHED = "all-reduce-h200.json"


@dataclass(frozen=True)
class Cell:
    """The latest finals of one cell: the best time of each variant and baseline, in µs."""

    workload: Workload
    times_us: Mapping[str, float]

    @property
    def better_us(self) -> float:
        return min(us for name, us in self.times_us.items() if name in operator(OPERATOR).variants)


def cells(recording: Recording) -> dict[Workload, Cell]:
    """The cells of the operator in which a variant worked."""
    found = {}
    for workload in recording.workloads:
        sessions = recording.finals(workload) if workload.operator == OPERATOR else []
        if not sessions:
            continue
        times: dict[str, float] = {}
        for config, one in sessions[-1].items():
            if one.median_us is not None:
                times[config.variant] = min(one.median_us, times.get(config.variant, one.median_us))
        if set(times) & set(operator(OPERATOR).variants):
            found[workload] = Cell(workload, times)
    return found


def figures() -> list[Figure]:
    """Over all shipped recordings of groups; a figure without a value says why."""
    recordings = [read_recording(path) for path in shipped_recordings().values()]
    groups = [one for one in recordings if any(workload.operator == OPERATOR for workload in one.workloads)]
    made: list[Figure] = []
    # What ranks on one GPU take says nothing of links: no goal of a group is met by it.
    worlds = {one.about.target.hardware.world for one in groups if not one.is_emulated}
    if GOAL_WORLD not in worlds:
        how = f"no recording of reductions at world {GOAL_WORLD} is shipped with this installation"
        made += _goals({}, how, None) + bisection_figures([], how)
    for recording in sorted(groups, key=lambda one: (one.about.target.hardware.world, one.is_emulated)):
        hardware = recording.about.target.hardware
        where = f"recording {recording.name}, {recording.about.target}, world {hardware.world}, {hardware.links}"
        found = cells(recording)
        if recording.is_emulated:
            made += _latencies(found.values(), Provenance.EMULATED, where)
            # Where its variants cross is another matter than how fast they are: that is found, or it is not.
            if crossings := bisected(recording):
                made += [
                    replace(
                        one, figure=f"{one.figure}, world {hardware.world}, emulated", provenance=Provenance.EMULATED
                    )
                    for one in bisection_figures(crossings, where)
                ]
            continue
        if hardware.world == GOAL_WORLD:
            made += _goals(found, where, hardware.gpu)
        made += _against_published(found.values(), hardware.gpu, where)
        crossings = bisected(recording)
        made += bisection_figures(crossings, where if crossings else f"no variant gives way to another in {where}")
        named = {figure.figure for figure in made}
        made += [one for one in _latencies(found.values(), Provenance.REPLAYED, where) if one.figure not in named]
    return made


def _latencies(found: Iterable[Cell], provenance: Provenance, where: str) -> Iterator[Figure]:
    """The best of each variant, and the fastest baseline, of every cell."""
    for cell in found:
        variants = {name: us for name, us in cell.times_us.items() if name in operator(OPERATOR).variants}
        baselines = {name: us for name, us in cell.times_us.items() if name not in variants}
        fastest = min(baselines, key=lambda name: baselines[name], default=None)
        for variant, us in sorted(variants.items()):
            against = f"{fastest} {baselines[fastest]:.2f} us; " if fastest else ""
            how = f"{against}the slowest rank's, back to back in a graph; {where}"
            name = _named(variant, cell.workload) + (", emulated" if provenance is Provenance.EMULATED else "")
            yield Figure(name, us, "us", "", None, provenance, how)


def _named(variant: str, workload: Workload) -> str:
    tokens = f"{workload.tokens} token{'s' if workload.tokens > 1 else ''}"
    return f"{variant} at {tokens}, width {workload['width']}, world {workload.world}"


def _goals(found: Mapping[Workload, Cell], where: str, gpu: str | None) -> list[Figure]:
    """The figures that have a goal: those of world 2 on H200s."""
    made = []
    for variant, goals in (("full_fanout", FAN_OUT_GOALS_US), ("the better variant", BETTER_GOALS_US)):
        for tokens, goal in goals.items():
            workload = operator(OPERATOR).workload({"width": WIDTH}, tokens, world=GOAL_WORLD)
            name, cell = _named(variant, workload), found.get(workload)
            value = None
            if cell is not None and gpu == _published()["gpu"]:
                value = cell.times_us.get(variant) if variant in operator(OPERATOR).variants else cell.better_us
            met = value <= goal if value is not None else None
            how = f"the slowest rank's, back to back in a graph; {where}"
            made.append(Figure(name, value, "us", f"<= {goal:g}", met, Provenance.REPLAYED, how))
    ratios = {
        cell.workload: cell.times_us[ONE_SHOT] / cell.better_us
        for cell in found.values()
        if cell.workload.tokens <= ONE_SHOT_TOKENS and ONE_SHOT in cell.times_us and cell.workload["width"] == WIDTH
    }
    name, goal_text = f"least speedup over torch's one-shot up to {ONE_SHOT_TOKENS} tokens", f">= {ONE_SHOT_GOAL:g}"
    if not ratios:
        return [*made, Figure(name, None, "x", goal_text, None, Provenance.REPLAYED, where)]
    worst = min(ratios, key=lambda workload: ratios[workload])
    how = f"{worst}, of {len(ratios)} cells; {where}"
    met = ratios[worst] >= ONE_SHOT_GOAL
    return [*made, Figure(name, ratios[worst], "x", goal_text, met, Provenance.REPLAYED, how)]


def _against_published(found: Iterable[Cell], gpu: str, where: str) -> list[Figure]:
    """The better variant against the best that libraries have published for this GPU and world, payload by payload."""
    published = _published()
    made = []
    for row in published["rows"]:
        enough = [
            cell
            for cell in found
            if cell.workload.world == row["world"] and gpu == published["gpu"] and _bytes(cell.workload) >= row["bytes"]
        ]
        if enough:
            # The smallest payload that is no smaller: whatever it holds more is to the library's advantage.
            cell = min(enough, key=lambda cell: (_bytes(cell.workload), cell.better_us))
            name = f"speedup over the best published at {row['bytes'] >> 10} KiB, world {row['world']}"
            how = (
                f"{cell.workload}, {_bytes(cell.workload)} bytes, in {cell.better_us:.2f} us against "
                f"{row['best_us']:.2f} us of {row['library']}; {published['source']}; {where}"
            )
            made.append(Figure(name, row["best_us"] / cell.better_us, "x", "", None, Provenance.IMPORTED, how))
    return made


def _bytes(workload: Workload) -> int:
    """Payload of a rank."""
    return workload.tokens * workload["width"] * ELEMENT_BYTES


def _published() -> dict[str, Any]:
    text = files("megatune_dashboard").joinpath("data", PUBLISHED).read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


REDUCTION = Benchmark(
    OPERATOR, "tuned reductions against a plain program, torch, published figures and a sweep", figures
)
