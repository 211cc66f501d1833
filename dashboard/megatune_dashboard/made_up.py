"""A made-up database of any size, to see and to time the pages with: real operators, shapes and configs, no GPU.

Times follow a smooth law of the parameters with noise, so that curves cross and searches have something to find. The
target is called synthetic, and every figure is the same for the same size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from itertools import islice
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from megatune_db import bulk
from megatune_db import models
from megatune_db.codec import SAMPLE
from megatune_db.records import CampaignState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_kernels.canonical import digest
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture

MODEL = "Kimi-K3"
TOKENS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
WIDTH = 7168
WORLDS = (2, 8)
REDUCTION_TOKENS = (1, 8, 64, 256)
SAMPLES = 16
FINALISTS = 4
CAMPAIGNS = 4
TARGETS = 2
"""The same GPU with two drivers, the second of which is slower."""
START = datetime(2026, 1, 1)
FAILURES = (
    (Status.COMPILE_ERROR, "the kernel needs 264 registers a thread, 255 are there"),
    (Status.WRONG_RESULT, "3 of 50176 elements differ from the reference by more than their bound"),
    (Status.HANG, "rank 1 stopped in phase measure: no step for 10 s"),
    (Status.CRASH, "an illegal memory access ended the worker"),
    (Status.OUT_OF_MEMORY, "the operands take 3.1 GB, 2.4 GB are free"),
)
FAILING = 0.03
"""Share of the measurements."""


def synthetic_target(driver: str = "0") -> Target:
    return Target(
        Hardware("synthetic H200", "sm_90a", "0000", 132, 50 * 2**20, 140 * 2**30, "nvlink-18", 8),
        Toolchain(driver, "0", "0", "0"),
    )


@dataclass
class _Cell:
    """A workload with its configs, and where their rows begin."""

    id: int
    workload: Workload
    configs: list[tuple[int, Config]]
    """Ids and configs; the baselines come last."""
    first_measurement: int = 0
    times: NDArray[np.float64] | None = None


def fill(session: Session, *, measurements: int, trials: int) -> tuple[int, int]:
    """Fill an empty database, and return how many measurements and trials there are.

    :param measurements: about how many; at most what the spaces of the shapes hold.
    :param trials: about how many, over ``CAMPAIGNS`` campaigns, the last of which is said to run.
    """
    noise = np.random.default_rng(1)
    targets = [synthetic_target(f"{number}.0") for number in range(1, TARGETS + 1)]
    bulk.insert_rows(
        session,
        models.Target,
        [{"id": number, "digest": each.digest, **each.to_dict()} for number, each in enumerate(targets, 1)],
    )
    cells, configs = _cells(measurements // TARGETS)
    bulk.insert_rows(session, models.Workload, (_workload_row(cell) for cell in cells))
    bulk.insert_rows(session, models.Config, configs)
    counted = bulk.insert_rows(session, models.Measurement, _measurements(cells, noise))
    bulk.insert_rows(session, models.Campaign, map(_campaign_row, range(1, CAMPAIGNS + 1)))
    return counted, bulk.insert_rows(session, models.Trial, _trials(cells, trials, noise))


def _workloads() -> Iterator[Workload]:
    for ranks in (8, 16):
        yield from operator("projection").workloads(model(MODEL), Parallel(tensor=ranks), TOKENS)
    for world in WORLDS:
        for tokens in REDUCTION_TOKENS:
            yield operator("reduction").workload({"width": WIDTH}, tokens, world=world)


def _cells(measurements: int) -> tuple[list[_Cell], list[dict[str, Any]]]:
    ids: dict[tuple[str, str], int] = {}
    rows: list[dict[str, Any]] = []
    arch = architecture("sm_90a")
    cells = []
    workloads = list(dict.fromkeys(_workloads()))
    each = max(8, math.ceil(measurements / len(workloads)) - 2 * FINALISTS)
    for number, workload in enumerate(workloads, 1):
        tuned = operator(workload.operator)
        mine = []
        for config in [*_some(tuned.space(workload, arch), each), *(Config.of(name, {}) for name in tuned.baselines)]:
            key = (workload.operator, config.digest)
            if key not in ids:
                ids[key] = len(ids) + 1
                rows.append(_config_row(ids[key], workload.operator, config))
            mine.append((ids[key], config))
        cells.append(_Cell(number, workload, mine))
    return cells, rows


def _some(space: Space, count: int) -> list[Config]:
    """So many legal configs, or all; of each variant about as many, as far as it has them."""
    remaining = [variant.configs() for variant in space.variants]
    found: list[Config] = []
    while remaining and len(found) < count:
        share = -(-(count - len(found)) // len(remaining))
        taken = [list(islice(each, share)) for each in remaining]
        found += [config for some in taken for config in some]
        remaining = [each for each, some in zip(remaining, taken, strict=True) if len(some) == share]
    return found[:count]


def _config_row(number: int, operator_name: str, config: Config) -> dict[str, Any]:
    return {
        "id": number,
        "operator": operator_name,
        "digest": config.digest,
        "variant": config.variant,
        "params": config.params,
        "changes_bits": False,
    }


def _workload_row(cell: _Cell) -> dict[str, Any]:
    workload = cell.workload
    return {"id": cell.id, "digest": workload.digest, "shape": workload.shape, **workload.to_dict()}


def _base_us(workload: Workload, config: Config) -> float:
    """What the variant takes at best: bytes at a bandwidth, and a price a token that differs between variants."""
    cost = operator(workload.operator).cost(workload, config)
    moved = cost.memory_bytes / 4.2e6 + cost.link_bytes / 3.6e5
    fixed, token = {
        "simt": (1.6, 0.35),
        "mma": (2.6, 0.03),
        "cublas": (3.6, 0.04),
        "full_fanout": (1.9, 0.0),
        "two_stage": (3.6, 0.0),
    }.get(config.variant, (5.0, 0.01))
    return fixed + token * workload.tokens + moved


def _times(cell: _Cell, noise: np.random.Generator) -> NDArray[np.float64]:
    """Microseconds of each config, shape (configs,): further from the best by each parameter."""
    wanted = math.log2(2 + cell.workload.tokens)
    base = {config.variant: _base_us(cell.workload, config) for _, config in cell.configs}
    away: dict[str, list[float]] = {variant: [] for variant in base}
    for _, config in cell.configs:
        numbers = [math.log2(1 + value) for value in config.params.values() if isinstance(value, int)]
        away[config.variant].append(sum(abs(each - wanted) / (3 + place) for place, each in enumerate(numbers)))
    nearest = {variant: min(distances) for variant, distances in away.items()}
    found = [
        base[config.variant] * (1 + 0.06 * (away[config.variant].pop(0) - nearest[config.variant]))
        for _, config in cell.configs
    ]
    blur: NDArray[np.float64] = noise.normal(1, 0.01, len(found)).clip(0.9)
    return np.array(found) * blur


def _measurements(cells: Sequence[_Cell], noise: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Of one target after the other; the first comes last, because the campaigns are its, and cells remember theirs."""
    number = 0
    for target, cell in product(range(TARGETS, 0, -1), cells):
        cell.first_measurement = number + 1
        cell.times = _times(cell, noise) * (1 + 0.1 * (target - 1))
        samples = np.sort(cell.times[:, None] * noise.normal(1, 0.003, (len(cell.times), SAMPLES)), axis=1)
        fails = noise.random(len(cell.times)) < FAILING
        baselines = len(operator(cell.workload.operator).baselines)
        fails[-baselines:] = False
        kinds = noise.integers(0, len(FAILURES), len(cell.times))
        for place, (config_id, _) in enumerate(cell.configs):
            number += 1
            failure = FAILURES[kinds[place]] if fails[place] else None
            yield _row(number, target, cell, config_id, samples[place], Stage.SEARCH, "search", failure)
        tuned = len(cell.times) - baselines
        best = [place for place in np.argsort(cell.times[:tuned]) if not fails[place]][:FINALISTS]
        at_stake = [*best, *range(tuned, len(cell.times))]
        finals = cell.times[at_stake, None] * noise.normal(1, 0.003, (len(at_stake), SAMPLES))
        for place, values in zip(at_stake, finals, strict=True):
            number += 1
            yield _row(number, target, cell, cell.configs[place][0], values, Stage.FINAL, f"final {cell.id}", None)


def _row(
    number: int,
    target: int,
    cell: _Cell,
    config_id: int,
    samples: NDArray[np.float64],
    stage: Stage,
    session: str,
    failure: tuple[Status, str] | None,
) -> dict[str, Any]:
    ordered = np.sort(samples)
    status, reason = failure or (Status.OK, "")
    return {
        "id": number,
        "workload_id": cell.id,
        "config_id": config_id,
        "target_id": target,
        "regime": str(Regime()),
        "stage": stage,
        "status": status,
        "provenance": Provenance.MEASURED,
        "session": session,
        "measured_at": START + timedelta(milliseconds=40 * number),
        "median_us": None if failure else float((ordered[7] + ordered[8]) / 2),
        "low_us": None if failure else float(ordered[4]),
        "high_us": None if failure else float(ordered[11]),
        "launches_a_sample": 0 if failure else 100,
        "sm_clock_mhz": None if failure else 1980,
        "flush_bytes": 2**27,
        "reason": reason,
        "compile_s": 0.2,
        "measure_s": 0.05,
        "artifact": "made-up",
        "revision": "made-up",
        "throttled": None,
        "samples": None if failure else samples.astype(SAMPLE).tobytes(),
    }


def _campaign_row(number: int) -> dict[str, Any]:
    running = number == CAMPAIGNS
    text = f'name = "made-up-{number}"\noperators = ["projection"]\n'
    return {
        "id": number,
        "name": f"made-up-{number}",
        "file_text": text,
        "file_digest": digest(text),
        "target_id": 1,
        "state": CampaignState.RUNNING if running else CampaignState.FINISHED,
        "budget": {"trials": 200},
        "started_at": START,
        "finished_at": None if running else START + timedelta(hours=number),
        "measuring_s": 3000.0,
        "wall_s": 3600.0,
    }


def _trials(cells: Sequence[_Cell], trials: int, noise: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Of each campaign every cell in turn, the last campaign with half of all trials."""
    shares = [*(0.5 / (CAMPAIGNS - 1) for _ in range(CAMPAIGNS - 1)), 0.5]
    number = 0
    for campaign, share in enumerate(shares, 1):
        each = max(1, round(trials * share / len(cells)))
        for cell in cells:
            for order, place in enumerate(_chosen(cell, each, noise)):
                number += 1
                yield {
                    "id": number,
                    "campaign_id": campaign,
                    "workload_id": cell.id,
                    "config_id": cell.configs[place][0],
                    "number": order,
                    "state": TrialState.DONE,
                    "measurement_id": cell.first_measurement + place,
                    "reason": "baseline" if place >= len(cell.configs) - 1 else "sampler",
                    "reused": False,
                    "created_at": START + timedelta(milliseconds=100 * number),
                }


def _chosen(cell: _Cell, count: int, noise: np.random.Generator) -> Iterable[int]:
    """Places of configs, a baseline first, the slower ones earlier on the whole."""
    assert cell.times is not None
    baseline = len(cell.configs) - 1
    others = noise.permutation(baseline)[: count - 1]
    blurred = cell.times[others] * noise.normal(1, 0.2, len(others))
    return [baseline, *others[np.argsort(-blurred)].tolist()]
