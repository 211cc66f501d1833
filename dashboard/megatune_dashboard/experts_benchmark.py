"""Benchmark ``experts``: Kimi K3's routed experts against the published figures of Marlin, and against the time in
which a copy reads the weights of the distinct experts once, from the shipped recordings.

The goals are about routings with a skew, and of these figures of two were published: each cell is compared with the one
of its own routing. Every figure follows from recordings, so any machine makes it; what was measured, and on what, the
recordings say.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from megatune_dashboard.bests import recordings_of
from megatune_db.records import Provenance
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_tuner.recordings import Recording

OPERATOR = "experts"
DTYPE = "mxfp4"
PUBLISHED = "marlin-kimi-k3-h200.json"
FEW_TOKENS = 16
FEW_GOAL = 2.0
MANY_GOAL = 1.5
FLOOR_TOKENS = 8
FLOOR_GOAL = 1.6
TOKENS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens that the goals are about: a figure without one of them meets none."""
FEW = f"least speedup over published Marlin, 1 to {FEW_TOKENS} tokens"
MANY = f"least speedup over published Marlin, more than {FEW_TOKENS} tokens"
FLOOR = f"most times of what a copy takes for the weights, {FLOOR_TOKENS} tokens and more"
TORCH = "least speedup over torch"
OVER = "speedup over published Marlin"
TIMES = "times of what a copy takes for the weights"

Cell = tuple[int, int, str]
"""Width of a rank's slice, tokens, routing."""


def figures() -> list[Figure]:
    """Over all shipped recordings; a figure without a value says why."""
    recordings = recordings_of(OPERATOR)
    if not recordings:
        return _unknown("no recording of experts is shipped with this installation")
    return [figure for recording in recordings for figure in _of(recording)]


def _unknown(how: str) -> list[Figure]:
    return [
        Figure(FEW, None, "x", f">= {FEW_GOAL:.2f}", None, Provenance.IMPORTED, how),
        Figure(MANY, None, "x", f">= {MANY_GOAL:.2f}", None, Provenance.IMPORTED, how),
        Figure(FLOOR, None, "x", f"<= {FLOOR_GOAL:.2f}", None, Provenance.REPLAYED, how),
        Figure(TORCH, None, "x", "", None, Provenance.REPLAYED, how),
    ]


def _of(recording: Recording) -> Iterator[Figure]:
    where = f"recording {recording.name}, {recording.about.target}"
    times = dict(_bests(recording))
    cells = {_cell(workload): (workload, tuned) for workload, (tuned, _) in times.items() if _is_of_model(workload)}
    published = _published() if _data()["gpu"] == recording.about.target.hardware.gpu else {}
    over = {cell: published[cell] / us for cell, (_, us) in cells.items() if cell in published}
    copy = recording.about.facts.get("copy_bytes_a_us")
    floors = (
        {cell: us * copy / operator(OPERATOR).rotating_bytes(workload) for cell, (workload, us) in cells.items()}
        if copy
        else {}
    )
    routings = " or ".join(dict.fromkeys(routing for _, _, routing in _published()))
    against = f"each against what was published at its own routing, {routings}: {_data()['what']}; {_data()['source']}"
    few, many = ({cell for cell in _wanted() if (cell[1] <= FEW_TOKENS) is small} for small in (True, False))
    yield _extreme(FEW, over, few, FEW_GOAL, f"{against}; {where}", least=True)
    yield _extreme(MANY, over, many, MANY_GOAL, f"{against}; {where}", least=True)
    enough = {cell for cell in _wanted() if cell[1] >= FLOOR_TOKENS}
    floor = f"each against its own distinct experts at the speed that a copy reached in the same run; {where}"
    yield _extreme(FLOOR, floors, enough, FLOOR_GOAL, floor, least=False)
    yield _over_torch(times, where)
    for width, tokens in sorted({cell[:2] for cell in _wanted()}, key=lambda place: (_ranks(place[0]), place[1])):
        here = sorted(cell for cell in _wanted() if cell[:2] == (width, tokens))
        place = f"at {tokens} tokens, {_ranks(width)} ranks"
        goal = FEW_GOAL if tokens <= FEW_TOKENS else MANY_GOAL
        pairs = [f"{cell[2]} {cells[cell][1]:.2f} us against {published[cell]:.2f}" for cell in here if cell in over]
        yield _extreme(f"{OVER} {place}", over, here, goal, "; ".join([*pairs, where]), least=True)
        limit = FLOOR_GOAL if tokens >= FLOOR_TOKENS else None
        if limit or any(cell in floors for cell in here):
            yield _extreme(f"{TIMES} {place}", floors, here, limit, where, least=False)


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files("megatune_dashboard").joinpath("data", PUBLISHED).read_text("utf-8"))
    return loaded


@cache
def _published() -> dict[Cell, float]:
    """Microseconds of a layer."""
    return {
        (row["width"], int(tokens), row["routing"]): us for row in _data()["rows"] for tokens, us in row["us"].items()
    }


def _ranks(width: int) -> int:
    return next(int(row["ranks"]) for row in _data()["rows"] if row["width"] == width)


def _wanted() -> set[Cell]:
    """What the goals are about."""
    return {cell for cell in _published() if cell[1] in TOKENS}


def _cell(workload: Workload) -> Cell:
    return (workload["width"], workload.tokens, workload.routing)


def _is_of_model(workload: Workload) -> bool:
    """Whether it is one of the slices of Kimi K3's experts that the goals are about, at one of their routings."""
    dims = dict(workload.dims)
    same = all(dims[name] == _data()[name] for name in ("experts", "k", "top"))
    kinds = {(width, routing) for width, _, routing in _published()}
    return same and workload.dtype == DTYPE and (dims["width"], workload.routing) in kinds


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


def _over_torch(times: Mapping[Workload, tuple[float, float | None]], where: str) -> Figure:
    ratios = {workload: stock / tuned for workload, (tuned, stock) in times.items() if stock is not None}
    if not ratios:
        return Figure(TORCH, None, "x", "", None, Provenance.REPLAYED, f"no such cells in {where}")
    worst = min(ratios, key=ratios.__getitem__)
    how = f"{len(ratios)} cells, the best of the finalists; this is {worst}; {where}"
    return Figure(TORCH, ratios[worst], "x", "", None, Provenance.REPLAYED, how)


def _extreme(
    name: str, ratios: Mapping[Cell, float], wanted: Collection[Cell], goal: float | None, how: str, *, least: bool
) -> Figure:
    """The ratio of the worst cell. A goal is met where all cells have one."""
    provenance = Provenance.IMPORTED if least else Provenance.REPLAYED
    said = f"{'>=' if least else '<='} {goal:.2f}" if goal is not None else ""
    found = {cell: ratio for cell, ratio in ratios.items() if cell in wanted}
    if not found:
        return Figure(name, None, "x", said, None, provenance, f"no such cells: {how}")
    worst = (min if least else max)(found, key=found.__getitem__)
    value = found[worst]
    met = None if goal is None else value >= goal if least else value <= goal
    lacking = sorted(set(wanted) - found.keys())
    if lacking:
        met = met and None
        how = f"not recorded: {', '.join(map(_text, lacking))}; {how}"
    return Figure(name, value, "x", said, met, provenance, f"{len(found)} cells; this is {_text(worst)}; {how}")


def _text(cell: Cell) -> str:
    width, tokens, routing = cell
    return f"{_ranks(width)} ranks {tokens} tokens {routing}"


EXPERTS = Benchmark("experts", "Kimi K3's routed experts against published Marlin and the memory's floor", figures)
