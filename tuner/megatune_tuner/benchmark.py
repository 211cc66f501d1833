"""Benchmark ``search``: how close to the recorded optimum a campaign comes with a tenth of the measurements.

For every cell of the shipped recordings the whole sampled space is known, and with it the optimum. The campaign's own
search, with what cells learn from their neighbours, runs over all cells of a recording with a budget of a tenth of
each cell's configs, once a seed. A cell's regret is how much slower than the optimum the best config found is.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.target import architecture_of
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.search import Search

SHARE = 0.1
"""Of a cell's recorded configs that may be measured, enqueued ones included."""
LEAST_CONFIGS = 100
"""Of each cell that a recording has, for the benchmark: a tenth of fewer is no search."""
SEEDS = 30
GOAL = 0.03
MOST_PROCESSES = 8
BLAS_THREADS = "OPENBLAS_NUM_THREADS"

WORST = "worst cell's regret"
WITHIN = "cells within the goal"


def sampled_cells(recording: Recording) -> list[Workload]:
    """The workloads whose space was recorded, in the order of the file.

    Those are at the tokens that the recording's campaign lists. Around crossovers only what was found at these is
    recorded, and what is best there is not known.
    """
    # A merged recording holds the texts of several campaigns, which together are no TOML.
    lists = re.findall(r"^\s*tokens\s*=\s*(\[[^\]]*\])", recording.about.campaign, re.MULTILINE)
    listed = {tokens for found in lists for tokens in tomllib.loads(f"tokens = {found}")["tokens"]}
    return [workload for workload in recording.workloads if workload.tokens in listed or not listed]


@cache
def _cells(path: Path) -> tuple[Recording, dict[Workload, Catalogue]]:
    """A recording, and the legal recorded configs of each of its cells."""
    recording = read_recording(path)
    arch = architecture_of(recording.about.target.hardware)
    catalogues = {}
    for workload in sampled_cells(recording):
        space = operator(workload.operator).space(workload, arch)
        catalogues[workload] = Catalogue(space, recording.configs(workload))
    return recording, catalogues


def regrets(path: Path, seed: int) -> dict[str, float]:
    """The regret of each cell of a recording, by digest of its workload, after a campaign with that seed.

    Infinite where nothing that works was found.
    """
    recording, catalogues = _cells(path)
    times = {workload: recording.times_us(workload) for workload in catalogues}

    def open_cell(workload: Workload) -> Cell:
        catalogue = catalogues[workload]
        trials = max(1, int(SHARE * len(catalogue)))
        return Cell(workload, catalogue, trials=trials, seed=seed)

    search = Search(list(catalogues), open_cell)
    while (asked := search.turn()) is not None:
        cell, proposals = asked
        for proposal in proposals:
            cell.tell(proposal, times[cell.workload].get(proposal.config))
    found = {}
    for workload, cell in search.cells.items():
        optimum = min((us for c, us in times[workload].items() if c in catalogues[workload].index), default=math.inf)
        best = cell.best_us
        found[workload.digest] = best / optimum - 1 if best is not None else math.inf
    return found


def search_figures(paths: Sequence[Path], seeds: int = SEEDS, processes: int | None = None) -> list[Figure]:
    """The figures over recordings; each seed's campaign runs in a process of its own."""
    goal = f"<= {GOAL:.0%}"
    if not paths:
        how = "no recording is shipped with this installation: `megatune record` makes one where there is a GPU"
        return [
            Figure(WORST, None, "%", goal, None, "replayed", how),
            Figure(WITHIN, None, "%", "", None, "replayed", how),
        ]
    jobs = [(path, seed) for path in paths for seed in range(seeds)]
    workers = min(processes or os.cpu_count() or 1, MOST_PROCESSES, len(jobs))
    if workers == 1:
        results = [regrets(*job) for job in jobs]
    else:
        # Started afresh, because a fork would copy the threads' locks of numpy and pyarrow.
        with _one_thread_each(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(regrets, *zip(*jobs, strict=True)))
    by_cell: dict[tuple[Path, str], list[float]] = {}
    for (path, _), found in zip(jobs, results, strict=True):
        for workload, regret in found.items():
            by_cell.setdefault((path, workload), []).append(regret)
    medians = [median(values) for values in by_cell.values()]
    worst = max(medians)
    within = sum(value <= GOAL for value in medians) / len(medians)
    names = ", ".join(path.stem for path in paths)
    how = f"{len(medians)} cells of {names}; median of {seeds} seeds; {SHARE:.0%} of a cell's recorded configs measured"
    return [
        Figure(
            WORST,
            100 * worst if math.isfinite(worst) else None,
            "%",
            goal,
            worst <= GOAL,
            "replayed",
            how if math.isfinite(worst) else f"in some cell nothing that works was found; {how}",
        ),
        Figure(WITHIN, 100 * within, "%", "", None, "replayed", how),
    ]


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started meanwhile do linear algebra in one thread: with more, they wait for each other's."""
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLAS_THREADS]
        else:
            os.environ[BLAS_THREADS] = before


def _searchable(path: Path) -> bool:
    recording = read_recording(path)
    return min((len(recording.configs(cell)) for cell in sampled_cells(recording)), default=0) >= LEAST_CONFIGS


def _run() -> list[Figure]:
    return search_figures([path for path in shipped_recordings().values() if _searchable(path)])


SEARCH = Benchmark("search", "Regret of a campaign against the recorded optimum", _run)
