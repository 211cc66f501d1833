"""A plan of everything that Megatune tunes of Kimi K3 at 16 ranks, with made-up times, and what else a step has."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill
from plan_examples import simt
from reduction_examples import BASELINES as REDUCTION_BASELINES
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import reduction_cases
from reduction_examples import sums

from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.projection.shapes import projection_shapes
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_planner.objective import Objective
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan

K3 = model("Kimi-K3")
TOKENS = (1, 4, 8, 16, 32, 64)
RANKS = 16
H200S = replace(TARGET, hardware=replace(TARGET.hardware, links="nvlink", world=RANKS))
OTHERS = ("attention", "kda core", "routing", "norms and elementwise", "sampling", "host")
"""Parts of a step that nobody measures."""


ROUTER = Workload.of("router_front", {"experts": 896, "k": 7168, "latent": 224, "top": 16}, 1)


EXPERTS = Workload.of(
    "experts",
    {"beta": 4, "experts": 896, "k": 3584, "linear_beta": 25, "top": 16, "width": 192},
    1,
    dtype="mxfp4",
    routing="balanced",
)


def default(workload: Workload, variant: str) -> Config:
    """The config of a variant's defaults, whatever these are."""
    space = operator(workload.operator).space(workload, architecture("sm_90a"))
    return Config.of(variant, {each.name: each.default for each in space.by_variant[variant].parameters})


GROUPED = default(EXPERTS, "grouped")


def experts_cases(tokens: tuple[int, ...], times: Mapping[str, float], stock_us: float) -> list[Case]:
    """Finals of one config of experts, by routing, against torch."""
    return [
        Case(replace(EXPERTS, tokens=count, routing=routing), config, us, Stage.FINAL, f"experts {routing} {count}")
        for routing, ours in times.items()
        for count in tokens
        for config, us in ((Config.of("torch", {}), stock_us), (GROUPED, ours))
    ]


def serving_plan(
    directory: Path,
    tokens: tuple[int, ...] = TOKENS,
    *,
    router: bool = False,
    experts: Sequence[Case] = (),
    objective: Objective | None = None,
) -> Plan:
    """A projection takes 10 µs on cuBLAS and 8 in the plan, a reduction 20 and 12, whatever the shape and tokens; the
    router front, where it is asked for, 30 and 9, and of a token over all ranks 30 and 6."""
    cases = list(experts)
    torch, redundant = Config.of("torch", {}), default(ROUTER, "redundant")
    routers = [(ROUTER.at(count), 9.0) for count in tokens] + [(replace(ROUTER, world=RANKS), 6.0)]
    for workload, ours in routers if router else ():
        for config, us in ((torch, 30.0), (redundant, ours)):
            cases.append(Case(workload, config, us))
            cases.append(Case(workload, config, us, Stage.FINAL, f"router finals {workload}"))
    for n, k in dict.fromkeys((shape.n, shape.k) for shape in projection_shapes(K3, Parallel(RANKS))):
        for count in tokens:
            workload = Workload.of("projection", {"n": n, "k": k}, count)
            for config, us in ((CUBLAS, 10.0), (simt(), 8.0)):
                cases.append(Case(workload, config, us))
                cases.append(Case(workload, config, us, Stage.FINAL, f"finals {workload}"))
    for width in (7168, 3584):
        times = sums(tokens, **{FANOUT: lambda _: 12.0, TWO_STAGE: lambda _: 14.0, NCCL: lambda _: 20.0})
        cases += reduction_cases(width, RANKS, times)
    with open_database(directory / "serving.db") as database, database.session() as session:
        fill(session, cases, H200S)
        plan = make_plan(
            session,
            name="kimi-k3-tp16",
            target=H200S.digest,
            regime=REGIME,
            baselines={"projection": ("cublas",), "router_front": ("torch",), "experts": ("torch",)}
            | REDUCTION_BASELINES,
            model="Kimi-K3",
            options=Options(objective=objective),
        )
    created = Created(at="2026-11-30T12:00:00+00:00", by="megatune")
    return Plan(digest=plan.digest, created=created, content=plan.content)


def given_text(us: float = 500.0) -> str:
    """Each of the other parts takes so many µs of a step, at every number of tokens from 1 to 64."""
    return "".join(
        f'[[given]]\npart = "{part}"\ntokens = {tokens}\nlow_us = {us}\nhigh_us = {us * 1.1}\nsource = "made up"\n'
        for part in OTHERS
        for tokens in (1, 64)
    )
