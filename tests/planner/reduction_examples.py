"""Measurements and plans of reductions that tests share; all of them made up, and the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill

from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_kernels.target import architecture
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import EVIDENCE
from megatune_planner.planning import make_plan

FANOUT = "full_fanout"
TWO_STAGE = "two_stage"
NCCL = "nccl"
BASELINES = {"reduction": (NCCL, "torch_one_shot", "torch_two_shot")}

GROUP = replace(
    TARGET, hardware=replace(TARGET.hardware, gpu="NVIDIA GB300", arch="sm_103a", links="nvlink-18", world=16)
)

Times = Mapping[int, Mapping[str, float]]
"""Microseconds by tokens and by variant or baseline."""


def on(arch: str, **hardware: Any) -> Target:
    return replace(GROUP, hardware=replace(GROUP.hardware, arch=arch, **hardware))


def config_of(name: str, workload: Workload) -> Config:
    """The variant's default at 1 token, so that one config serves every number of tokens."""
    if name in BASELINES["reduction"]:
        return Config.of(name, {})
    return _default(name, workload.at(1))


@cache
def _default(variant: str, workload: Workload) -> Config:
    space = operator("reduction").space(workload, architecture("sm_100a"))
    return next(config for config in space.defaults() if config.variant == variant)


def reduction_cases(
    width: int, world: int, times: Times, provenance: Provenance = Provenance.MEASURED, spread: float = 0.004
) -> list[Case]:
    """Each time once as a search measured it and once among the finalists."""
    found = []
    for tokens, at in times.items():
        workload = Workload.of("reduction", {"width": width}, tokens, world=world)
        for name, us in at.items():
            config = config_of(name, workload)
            found.append(Case(workload, config, us, provenance=provenance, spread=spread))
            session = f"finals {workload}"
            found.append(Case(workload, config, us, Stage.FINAL, session, provenance=provenance, spread=spread))
    return found


def sums(tokens: Iterable[int], **us: Callable[[int], float]) -> Times:
    """Times of variants and baselines as functions of the tokens."""
    return {each: {name: time(each) for name, time in us.items()} for each in tokens}


def wins(winners: Mapping[int, str], names: Iterable[str] = (FANOUT, TWO_STAGE, NCCL)) -> Times:
    """Who is the fastest at each number of tokens, all times growing slowly."""
    return {
        tokens: {name: (5.0 if name == winner else 5.2) * (1 + tokens / 1000) for name in names}
        for tokens, winner in winners.items()
    }


def plan_of(
    directory: Path,
    cases: Iterable[Case],
    target: Target = GROUP,
    provenances: Iterable[Provenance] = EVIDENCE,
) -> Plan:
    """The plan of the cases; its envelope is fixed, so that its bytes are the same every time."""
    with open_database(directory / "reduction.db") as database, database.session() as session:
        fill(session, cases, target)
        plan = make_plan(
            session,
            name="reductions",
            target=target.digest,
            regime=REGIME,
            baselines=BASELINES,
            provenances=tuple(provenances),
        )
    created = Created(at="2026-11-30T12:00:00+00:00", by="megatune")
    return Plan(digest=plan.digest, created=created, content=plan.content)


def example_reductions() -> list[Case]:
    """Kimi K3's two widths at three worlds: fan-out for few tokens, two-stage for more, NCCL for many."""
    sparse = (1, 2, 4, 8, 16, 32, 64)
    hidden, latent = 7168, 3584
    return [
        *reduction_cases(
            hidden, 4, sums(sparse, full_fanout=lambda t: 2 + 0.05 * t, two_stage=lambda t: 6.0, nccl=lambda t: 12.0)
        ),
        *reduction_cases(
            hidden,
            8,
            sums(
                (*sparse, 128),
                full_fanout=lambda t: 2 + 0.12 * t,
                two_stage=lambda t: 5 + 0.04 * t,
                nccl=lambda t: 9.4,
            ),
        ),
        *reduction_cases(
            latent,
            8,
            sums(sparse, full_fanout=lambda t: 2 + 0.06 * t, two_stage=lambda t: 7.0, nccl=lambda t: 9.0),
        ),
        *reduction_cases(
            hidden,
            16,
            sums(sparse, full_fanout=lambda t: 2 + 0.24 * t, two_stage=lambda t: 6 + 0.05 * t, nccl=lambda t: 14.0),
        ),
        *reduction_cases(
            latent,
            16,
            sums(sparse, full_fanout=lambda t: 2 + 0.12 * t, two_stage=lambda t: 6 + 0.03 * t, nccl=lambda t: 7.0),
        ),
    ]


def without_kernels(plan: Plan) -> Plan:
    """The same plan whatever the kernels' parameters and workspaces are, for files that are kept."""

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            fixed = {"params": {}, "workspace_bytes": 0, "workspace_alignment_bytes": 1}
            value = {key: fixed.get(key, blank(each)) for key, each in value.items()}
            return value | ({"config": Config.of(value["variant"], {}).digest} if "config" in value else {})
        return [blank(each) for each in value] if isinstance(value, list) else value

    spelled = plan.content.model_dump(mode="json")
    content = json.dumps(blank(spelled) | {"inputs": spelled["inputs"]})
    changed = Plan.of(type(plan.content).model_validate_json(content))
    return Plan(digest=changed.digest, created=plan.created, content=changed.content)


def example_reduction_plan(directory: Path) -> Plan:
    return without_kernels(plan_of(directory, example_reductions()))
