"""Reductions whose variants cross where they are made to; all of it made up, with the real operator's configs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from plan_examples import TARGET
from plan_examples import Case

from megatune_db.records import Stage
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_kernels.target import architecture

REDUCTION = operator("reduction")
BASELINES = {"reduction": REDUCTION.baselines, "projection": ("cublas",)}
NCCL, ONE_SHOT, TWO_SHOT = REDUCTION.baselines
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

Curve = Callable[[int], float]


def reduction(tokens: int, width: int = 7168, world: int = 2) -> Workload:
    return REDUCTION.workload({"width": width}, tokens, world=world)


@cache
def default(variant: str, width: int = 7168, world: int = 2) -> Config:
    """One config a variant, legal at every number of tokens."""
    space = REDUCTION.space(reduction(1, width, world), architecture("sm_90a"))
    return next(config for config in space.defaults() if config.variant == variant)


FANOUT, TWO_STAGE = default("full_fanout"), default("two_stage")
GROUP = Target(replace(TARGET.hardware, links="nvlink-18", world=2), TARGET.toolchain)


def cells(curves: Mapping[Config, Curve], tokens: Sequence[int] = POWERS, **where: int) -> list[Case]:
    """Each config searched and then among the finalists, with the interval of 0.4 % of the examples."""
    found = []
    for count in tokens:
        workload = reduction(count, **where)
        for config, curve in curves.items():
            found.append(Case(workload, config, curve(count)))
            found.append(Case(workload, config, curve(count), Stage.FINAL, f"finals {workload}"))
    return found


def baselines(nccl: Curve = lambda t: 30 + t / 10) -> dict[Config, Curve]:
    return {
        Config.of(NCCL, {}): nccl,
        Config.of(ONE_SHOT, {}): lambda t: 12 + t / 10,
        Config.of(TWO_SHOT, {}): lambda t: 16 + t / 12,
    }


def variants() -> dict[Config, Curve]:
    """They are equally fast at 96.67 tokens."""
    return {FANOUT: lambda t: 2 + 0.04 * t, TWO_STAGE: lambda t: 3.45 + 0.025 * t}
