"""What recordings say of an operator's cells: the best config against the best of what serves today."""

from __future__ import annotations

from dataclasses import dataclass

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings


@dataclass(frozen=True)
class Best:
    """The best config of a cell against its baseline, in µs: among its latest finalists."""

    workload: Workload
    tuned_us: float
    baseline_us: float

    @property
    def speedup(self) -> float:
        return self.baseline_us / self.tuned_us


def recordings_of(name: str) -> list[Recording]:
    """The shipped recordings that hold workloads of an operator over cold weights, as a decode step reads them."""
    recordings = [read_recording(path) for path in shipped_recordings().values()]
    recordings = [one for one in recordings if one.about.regime.weights == "cold"]
    return [one for one in recordings if any(workload.operator == name for workload in one.workloads)]


def bests(recording: Recording, name: str) -> dict[Workload, Best]:
    """The best of every cell of an operator that was measured among finalists, its baseline beside it."""
    baselines = operator(name).baselines
    found = {}
    for workload in recording.workloads:
        if workload.operator != name:
            continue
        for session in recording.finals(workload):
            times = {config: one.median_us for config, one in session.items() if one.median_us is not None}
            tuned = [us for config, us in times.items() if config.variant not in baselines]
            stock = [us for config, us in times.items() if config.variant in baselines]
            if tuned and stock:
                # Times of two sessions are not compared: the latest speaks for the cell, as it knows the most configs.
                found[workload] = Best(workload, min(tuned), min(stock))
    return found
