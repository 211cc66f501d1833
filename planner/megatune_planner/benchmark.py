"""How fast plans are made and read."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_planner.plan import Plan
from megatune_planner.reader import load

OPERATOR = "projection"
BASELINE = Config.of("cublas", {})
SHAPES = ((1536, 7168), (6288, 7168), (2112, 7168), (2304, 1536), (7168, 1536), (7168, 768), (3584, 7168), (7168, 3584))
"""N and K of a rank's projections."""
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
FINALISTS = 4
SAMPLES = 8
MILLION = 1_000_000
ROUNDS = 100
CALLS = 20_000

SELECT_GOAL_NS = 1000
PLAN_GOAL_S = 10
PLAN_GOAL_MB = 1000


def _planner() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="megatune-bench-") as folder:
        path = Path(folder) / "million.db"
        with open_database(path) as database:
            rows = fill(database, MILLION)
        made = _plan_apart(path)
        plan = Plan.from_json(made["plan"])
        select = _select_ns(plan)
    how = (
        f"synthetic database of {rows} measurements, {len(SHAPES)} shapes at {len(TOKENS)} tokens; planned in a "
        "process of its own, "
    )
    seconds, peak = made["seconds"], made["peak_bytes"] / 1e6
    return [
        Figure(
            figure="select",
            value=select,
            unit="ns",
            goal=f"< {SELECT_GOAL_NS}",
            met=select < SELECT_GOAL_NS,
            provenance="measured",
            how=f"median over {ROUNDS} rounds of {CALLS} calls of Reader.select, the loop included; "
            f"CPython {sys.version.split()[0]}",
        ),
        Figure(
            figure="plan a million measurements",
            value=seconds,
            unit="s",
            goal=f"< {PLAN_GOAL_S}",
            met=seconds < PLAN_GOAL_S,
            provenance="measured",
            how=how + "from opening the database to the plan's JSON, imports left out",
        ),
        Figure(
            figure="peak memory of planning a million measurements",
            value=peak,
            unit="MB",
            goal=f"< {PLAN_GOAL_MB}",
            met=peak < PLAN_GOAL_MB,
            provenance="measured",
            how=how + "whose largest resident set it is, the interpreter and every import included",
        ),
    ]


def target() -> Target:
    """A made-up target, so that nobody takes these figures for a machine's."""
    return Target(
        Hardware(
            gpu="synthetic", arch="sm_90a", device_id="0000", sms=1, l2_bytes=1, memory_bytes=1, links="none", world=1
        ),
        Toolchain(driver="0", cuda="0", dsl="0", torch="0"),
    )


def fill(database: Database, rows: int) -> int:
    """Fill the database with at least this many made-up measurements, the same for the same number; return how many.

    Every config is measured at every workload; the best few, and the baseline, once more as finalists.
    """
    workloads = [Workload.of(OPERATOR, {"n": n, "k": k}, tokens) for n, k in SHAPES for tokens in TOKENS]
    configs = _configs(math.ceil(rows / len(workloads)) - FINALISTS - 2)
    with database.session() as session:
        made_up = target()
        store.put_target(session, digest=made_up.digest, **made_up.to_dict())
        for config in (BASELINE, *configs):
            store.put_config(
                session, digest=config.digest, operator=OPERATOR, variant=config.variant, params=config.params
            )
        for workload in workloads:
            store.put_workload(session, digest=workload.digest, shape=workload.shape, **workload.to_dict())
        return store.add_measurements(
            session, (each for workload in workloads for each in _measurements(workload, configs))
        )


def _configs(count: int) -> list[Config]:
    found = []
    for index in range(count):
        params: dict[str, int | bool] = {
            "block": 32 * (1 + index % 8),
            "rows": 1 + index % 5,
            "k_unroll": 1 << index % 3,
            "vector": 8,
            "split_k": 1 << index // 7 % 3,
            "static_k": index % 2 == 0,
            "pdl": True,
            "stages": index,
        }
        found.append(Config.of("simt" if index % 2 else "mma", params))
    return found


def _measurements(workload: Workload, configs: list[Config]) -> Iterator[Measurement]:
    noise = random.Random(workload.digest)
    base = 3 + workload["n"] * workload["k"] / 4e6 + workload.tokens / 32
    # The order of configs turns slowly with the tokens, so that neighbours agree and the far ends do not.
    best = workload.tokens * len(configs) // (2 * TOKENS[-1])
    times = {
        config: base * (0.8 + 1.5 * abs(index - best) / len(configs) + 0.05 * noise.random())
        for index, config in enumerate(configs)
    }
    times[BASELINE] = base
    for config, us in times.items():
        yield _measurement(workload, config, us, noise, Stage.SEARCH)
    finalists = [*sorted(configs, key=times.__getitem__)[:FINALISTS], BASELINE]
    for config in finalists:
        yield _measurement(workload, config, times[config], noise, Stage.FINAL)


def _measurement(workload: Workload, config: Config, us: float, noise: random.Random, stage: Stage) -> Measurement:
    samples = sorted(us * noise.gauss(1, 0.003) for _ in range(SAMPLES))
    median = statistics.median(samples)
    return Measurement(
        workload=workload.digest,
        config=config.digest,
        target=target().digest,
        regime=Regime(),
        stage=stage,
        status=Status.OK,
        provenance=Provenance.MEASURED,
        session=f"{stage} {workload}",
        measured_at=datetime(2026, 1, 1),
        samples_us=tuple(samples),
        median_us=median,
        low_us=samples[1],
        high_us=samples[-2],
        launches_a_sample=100,
    )


_PLAN_APART = """
import json, resource, sys, time
from megatune_db.records import Regime
from megatune_db.session import open_database
from megatune_planner.benchmark import OPERATOR, BASELINE, target
from megatune_planner.exporters.base import expressible
from megatune_planner.planning import make_plan
expresses = expressible()
started = time.perf_counter()
with open_database(sys.argv[1], read_only=True) as database, database.session() as session:
    plan = make_plan(session, name="benchmark", target=target().digest, regime=Regime(),
                     baselines={OPERATOR: (BASELINE.variant,)}, expresses=expresses).to_json()
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "plan": plan}))
"""


def _plan_apart(path: Path) -> dict[str, Any]:
    """Plan in a process of its own: a peak of memory can be asked for a whole process only."""
    done = subprocess.run(
        [sys.executable, "-c", _PLAN_APART, str(path)], check=True, capture_output=True, text=True, timeout=600
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _select_ns(plan: Plan) -> float:
    """Median nanoseconds of one call, over every shape of the plan and tokens inside and outside what it covers."""
    reader = load(plan.to_json(), target=None)
    shapes = [shape.shape for shape in plan.operator(OPERATOR).shapes]
    arguments = [(shapes[index % len(shapes)], 1 + 7 * index % 80) for index in range(CALLS)]
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for shape, tokens in arguments:
            reader.select(OPERATOR, shape, tokens)
        found.append((time.perf_counter_ns() - started) / CALLS)
    return statistics.median(found)


PLANNER = Benchmark("planner", "how fast plans are made and read", _planner)
