"""Measurements and plans that the tests of the planner share; all of them made up, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_planner.exporters.base import expressible
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import make_plan
from megatune_planner.ties import Candidate

TARGET = Target(
    Hardware(
        gpu="NVIDIA H200",
        arch="sm_90a",
        device_id="2335",
        sms=132,
        l2_bytes=60 * 2**20,
        memory_bytes=141 * 2**30,
        links="none",
    ),
    Toolchain(driver="580.00", cuda="13.0", dsl="4.8.1", torch="2.11.0"),
)
REGIME = Regime()
BASELINES = {"projection": ("cublas",)}
CUBLAS = Config.of("cublas", {})


def simt(block: int = 128, rows: int = 2, k_unroll: int = 2, split_k: int = 1, static_k: bool = False) -> Config:
    return Config.of(
        "simt",
        {
            "block": block,
            "rows": rows,
            "k_unroll": k_unroll,
            "vector": 8,
            "split_k": split_k,
            "static_k": static_k,
            "pdl": True,
        },
    )


def mma(rows: int = 16, stages: int = 4, split_k: int = 1) -> Config:
    return Config.of(
        "mma",
        {
            "warps": 4,
            "rows": rows,
            "rows_a_warp": 16,
            "k_unroll": 2,
            "stages": stages,
            "split_k": split_k,
            "static_k": False,
            "pdl": True,
        },
    )


@dataclass(frozen=True)
class Case:
    """One measurement to store: a config at a workload, with its median."""

    workload: Workload
    config: Config
    us: float
    stage: Stage = Stage.SEARCH
    session: str = "search"
    provenance: Provenance = Provenance.MEASURED
    spread: float = 0.004
    """Half the width of its interval over its median."""
    revision: str = ""
    """Of the kernels."""
    status: Status = Status.OK


def samples_of(us: float, spread: float, count: int = 20) -> tuple[float, ...]:
    """Symmetric around the median, the same for every call; sample i of two sets deviates alike."""
    steps = np.linspace(-2, 2, count)
    return tuple(float(us * (1 + spread * step)) for step in np.concatenate([steps[::2], steps[1::2]]))


def measurement(case: Case, target: Target = TARGET) -> Measurement:
    if case.status is not Status.OK:
        return replace(
            measurement(replace(case, status=Status.OK), target),
            status=case.status,
            samples_us=(),
            median_us=None,
            low_us=None,
            high_us=None,
            reason="made up",
        )
    return Measurement(
        workload=case.workload.digest,
        config=case.config.digest,
        target=target.digest,
        regime=REGIME,
        stage=case.stage,
        status=Status.OK,
        provenance=case.provenance,
        session=case.session,
        measured_at=datetime(2026, 11, 30, 12, 0, 0),
        samples_us=samples_of(case.us, case.spread),
        median_us=case.us,
        low_us=case.us * (1 - case.spread),
        high_us=case.us * (1 + case.spread),
        launches_a_sample=100,
        revision=case.revision,
    )


def fill(session: Session, cases: Iterable[Case], target: Target = TARGET) -> None:
    """Store the cases; the ids of measurements follow their order."""
    spelled = target.to_dict()
    store.put_target(session, digest=target.digest, hardware=spelled["hardware"], toolchain=spelled["toolchain"])
    cases = list(cases)
    for case in cases:
        workload = case.workload
        tuned = operators().get(workload.operator)
        store.put_workload(
            session,
            digest=workload.digest,
            operator=workload.operator,
            shape=workload.shape,
            dims=dict(workload.dims),
            tokens=workload.tokens,
            dtype=workload.dtype,
            world=workload.world,
            routing=workload.routing,
            facts=tuned.facts(workload) or None if tuned else None,
        )
        store.put_config(
            session,
            digest=case.config.digest,
            operator=workload.operator,
            variant=case.config.variant,
            params=case.config.params,
        )
    store.add_measurements(session, (measurement(case, target) for case in cases))


def candidate(config: Config, us: float, *, id_: int = 1, spread: float = 0.004, session: str = "") -> Candidate:
    """As found by a search, or in a session of finalists when one is named."""
    return Candidate(
        measurement_id=id_,
        variant=config.variant,
        params=config.params,
        config=config.digest,
        stage=Stage.FINAL if session else Stage.SEARCH,
        session=session,
        median_us=us,
        low_us=us * (1 - spread),
        high_us=us * (1 + spread),
        provenance=Provenance.MEASURED,
    )


def example_cases() -> list[Case]:
    """Two shapes: at one, simt wins up to 8 tokens and mma above; at the other only few tokens win."""
    cases = []
    for tokens in (1, 2, 4, 8, 16, 32, 64):
        wide = Workload.of("projection", {"n": 1536, "k": 7168}, tokens)
        cases += _finals(
            wide,
            {
                CUBLAS: 10.0 + 0.02 * tokens,
                simt(): 6.8 + 0.28 * tokens,
                simt(block=256, split_k=2): 6.6 + 0.28 * tokens,
                simt(block=224, rows=3, k_unroll=4): 6.81 + 0.28 * tokens,
                mma(): 8.6 + 0.012 * tokens,
            },
        )
        cases.append(Case(wide, simt(block=64), 9.3 + 0.28 * tokens))
        narrow = Workload.of("projection", {"n": 2304, "k": 1536}, tokens)
        cases += _finals(narrow, {CUBLAS: 4.0, simt(block=96, rows=4): 3.4 + 0.09 * tokens})
    return cases


def _finals(workload: Workload, times: Mapping[Config, float]) -> list[Case]:
    found = [Case(workload, config, us) for config, us in times.items()]
    return found + [Case(workload, config, us, Stage.FINAL, f"finals {workload}") for config, us in times.items()]


def example_plan(directory: Path, cases: Iterable[Case] | None = None) -> Plan:
    """The plan of the example's measurements; its envelope is fixed, so that its bytes are the same every time."""
    with open_database(directory / "example.db") as database, database.session() as session:
        fill(session, example_cases() if cases is None else cases)
        plan = make_plan(
            session,
            name="example",
            target=TARGET.digest,
            regime=REGIME,
            baselines=BASELINES,
            expresses=expressible(),
        )
    return Plan(
        digest=plan.digest, created=Created(at="2026-11-30T12:00:00+00:00", by="megatune"), content=plan.content
    )
