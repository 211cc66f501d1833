"""Plans of SGLang's sequence-parallel collectives, as a package's operators would lead to; made up."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plan_examples import REGIME
from plan_examples import Case
from plan_examples import fill
from reduction_examples import GROUP
from reduction_examples import example_reduction_plan

from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.operator import Part
from megatune_kernels.operator import Workload
from megatune_kernels.operator import Workspace
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_planner import planning
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import EVIDENCE
from megatune_planner.planning import make_plan

SCATTER = "reduce_scatter"
GATHER = "all_gather"
NCCL = Config.of("nccl", {})


def push(num_blocks: int = 64, block_size: int = 256) -> Config:
    return Config.of("push", {"num_blocks": num_blocks, "block_size": block_size})


def pull(num_blocks: int = 32, block_size: int = 1024, strategy: str = "pull") -> Config:
    return Config.of(strategy, {"num_blocks": num_blocks, "block_size": block_size})


def direct(num_blocks: int = 32, block_size: int = 1024) -> Config:
    return pull(num_blocks, block_size, "direct")


def sp_cases(
    operator: str,
    world: int,
    winners: Mapping[int, Config | None],
    *,
    width: int = 7168,
    dtype: str = "bf16",
    provenance: Provenance = Provenance.MEASURED,
) -> list[Case]:
    """At each number of tokens of all ranks a config that beats NCCL, or none that does."""
    found = []
    for tokens, winner in winners.items():
        workload = Workload.of(operator, {"width": width}, tokens, world=world, dtype=dtype)
        for config, us in {NCCL: 20.0, (winner or push(8)): 10.0 if winner else 25.0}.items():
            found.append(Case(workload, config, us, provenance=provenance))
            found.append(Case(workload, config, us, Stage.FINAL, f"finals {workload}", provenance=provenance))
    return found


class Registered:
    """What planning asks of an operator that another package registers."""

    def workspace(self, workload: Workload, config: Config) -> Workspace:
        return Workspace(4096, 16)

    def parts(self, workload: Workload, config: Config) -> tuple[Part, ...]:
        return (Part("sum", workload, config),)

    def launch(self, workload: Workload, config: Config) -> Any:
        return SimpleNamespace(resident=True)


def sp_plan(
    directory: Path,
    cases: Iterable[Case],
    target: Target = GROUP,
    provenances: Iterable[Provenance] = EVIDENCE,
    baselines: tuple[str, ...] = ("nccl",),
) -> Plan:
    """The plan of the cases; its envelope is fixed, so that its bytes are the same every time."""
    with (
        pytest.MonkeyPatch.context() as patch,
        open_database(directory / "sp.db") as database,
        database.session() as session,
    ):
        patch.setattr(planning, "operator", lambda name: Registered())
        fill(session, cases, target)
        plan = make_plan(
            session,
            name="collectives",
            target=target.digest,
            regime=REGIME,
            baselines={SCATTER: baselines, GATHER: baselines},
            provenances=tuple(provenances),
        )
    created = Created(at="2026-11-30T12:00:00+00:00", by="megatune")
    return Plan(digest=plan.digest, created=created, content=plan.content)


def example_sp_cases() -> list[Case]:
    """At 8 ranks push, pull and NCCL; at 16 NCCL between the two."""
    return [
        *sp_cases(SCATTER, 8, {8: push(), 16: push(), 64: push(), 512: pull(), 2048: pull(), 4096: None}),
        *sp_cases(GATHER, 8, {8: None, 16: push(16), 64: push(16), 512: direct(), 4096: direct()}),
        *sp_cases(SCATTER, 16, {16: push(128, 512), 64: None, 256: pull(96, 512)}),
    ]


def example_collectives_plan(directory: Path) -> Plan:
    """Operators of these collectives and of reductions in one plan."""
    plan, reductions = sp_plan(directory, example_sp_cases()), example_reduction_plan(directory)
    operators = (*plan.content.operators, *reductions.content.operators)
    both = Plan.of(plan.content.model_copy(update={"operators": operators}))
    return Plan(digest=both.digest, created=plan.created, content=both.content)
