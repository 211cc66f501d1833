"""Measurements of chains that tests share; all of them made up, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill

from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_planner.exporters.base import expressible
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import make_plan

BASELINES = {"prefetch": ("none",)}
NONE = Config.of("none", {})
KDA = {"idle_ns": 5000, "n1": 6288, "k1": 7168, "n2": 1536, "k2": 128}
"""Kimi K3's at 8 ranks: 86.3 MiB of weights."""
BLACKWELL = replace(
    TARGET, hardware=replace(TARGET.hardware, gpu="NVIDIA B200", arch="sm_100a", device_id="2901", l2_bytes=126 * 2**20)
)


def plain(*, pdl: bool = True) -> Config:
    return Config.of("plain", {"pdl": pdl})


def prefetch(depth: int, *, carveout: int = 0, grid: int = 8, start: int = 0, pdl: bool = True, **rest: str) -> Config:
    return Config.of(
        "prefetch",
        {
            "depth_mib": depth,
            "grid": grid,
            "chunk_kib": 16,
            "carveout": carveout,
            "start_percent": start,
            "pdl": pdl,
            "consumer": "cold",
            **rest,
        },
    )


def chain(tokens: int, dims: Mapping[str, int] | None = None) -> Workload:
    return operator("prefetch").workload(KDA if dims is None else dims, tokens)


def attention_chains(tensor: int, tokens: int) -> list[Workload]:
    """Of Kimi K3's attention layers, KDA and MLA, each with every length of the idle phase."""
    found = operator("prefetch").workloads(model("Kimi-K3"), Parallel(tensor), [tokens])
    return [workload for workload in found if "k2" in dict(workload.dims) and workload.world == 1]


def grouped_chains(tensor: int, tokens: int) -> list[Workload]:
    """The same behind the reduction of so many ranks."""
    found = operator("prefetch").workloads(model("Kimi-K3"), Parallel(tensor), [tokens])
    return [workload for workload in found if "k2" in dict(workload.dims) and workload.world == tensor]


def cell(workload: Workload, times: Mapping[Config, float], finals: Iterable[Config] | None = None) -> list[Case]:
    """Each time once as a search measured it, and those of ``finals`` (by default all) among the finalists."""
    found = [Case(workload, config, us) for config, us in times.items()]
    chosen = times if finals is None else finals
    return found + [Case(workload, config, times[config], Stage.FINAL, f"finals {workload}") for config in chosen]


def valley(off_us: float, best_mib: int, gain_us: float) -> dict[Config, float]:
    """Times by depth with an optimum inside: what was not asked for in time saves nothing, and what was not yet there
    when it was needed costs as much."""
    times = {depth: off_us - gain_us * (1 - abs(depth - best_mib) / best_mib) for depth in (2, 4, 8, 12, 16, 24, 32)}
    return {
        NONE: off_us * 1.06,
        plain(): off_us,
        plain(pdl=False): off_us * 1.06,
        **{prefetch(depth): us for depth, us in times.items()},
    }


def plan_of(directory: Path, cases: Iterable[Case], target: Target = TARGET) -> Plan:
    """The plan of the cases; its envelope is fixed, so that its bytes are the same every time."""
    with open_database(directory / "prefetch.db") as database, database.session() as session:
        fill(session, cases, target)
        plan = make_plan(
            session,
            name="prefetch",
            target=target.digest,
            regime=REGIME,
            baselines=BASELINES,
            expresses=expressible(),
        )
    created = Created(at="2026-11-30T12:00:00+00:00", by="megatune")
    return Plan(digest=plan.digest, created=created, content=plan.content)


def example_prefetches() -> list[Case]:
    """Both kinds of attention at 8 and 16 ranks: deep for few tokens, shallower for more, and none at 8."""
    found = []
    for tensor, best_mib in ((8, 24), (16, 16)):
        for tokens, gain_us in ((1, 6.0), (2, 5.0), (4, 4.0), (8, 0.0)):
            for workload in attention_chains(tensor, tokens):
                off_us = 20.0 + workload["idle_ns"] / 1000 + tokens / 8
                times = valley(off_us, best_mib if tokens < 4 else best_mib // 2, gain_us)
                if not gain_us:
                    times |= {config: off_us + 1 for config in times if config.variant == "prefetch"}
                found += cell(workload, times)
    return found


def example_prefetch_plan(directory: Path) -> Plan:
    return plan_of(directory, example_prefetches(), BLACKWELL)
