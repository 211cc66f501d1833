"""How benchmarks report: figures with a goal, where they come from and how they were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from megatune_kernels.errors import MegatuneError


@dataclass(frozen=True)
class Figure:
    """One number of a benchmark. ``value`` and ``met`` are None where this machine cannot make it; ``how`` says
    why."""

    figure: str
    value: float | None
    unit: str
    goal: str
    """The condition in words, e.g. ``>= 1.25``; empty for a figure without a goal."""
    met: bool | None
    provenance: str
    how: str


@dataclass(frozen=True)
class Benchmark:
    """A named set of figures, registered by an entry point in the group ``megatune.benchmarks``."""

    name: str
    what: str
    run: Callable[[], list[Figure]]

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "figures": [asdict(figure) for figure in self.run()]}


def benchmarks() -> dict[str, Benchmark]:
    """Every registered benchmark by name."""
    found = {}
    for point in entry_points(group="megatune.benchmarks"):
        benchmark: Benchmark = point.load()
        found[benchmark.name] = benchmark
    return dict(sorted(found.items()))


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name.

    :raises MegatuneError: when there is none, with the names that there are.
    """
    known = benchmarks()
    if name not in known:
        raise MegatuneError(f"unknown benchmark {name!r}; allowed: {', '.join(known)}")
    return known[name]
