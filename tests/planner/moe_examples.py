"""Plans of Triton's fused-MoE kernels, as a package's operator would lead to; made up, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace
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
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.moe_table import MoeTable
from megatune_planner.plan import Created
from megatune_planner.plan import Plan
from megatune_planner.planning import EVIDENCE
from megatune_planner.planning import make_plan

OPERATOR = "fused_moe"
QWEN = {"experts": 128, "width": 192, "hidden": 4096, "top_k": 8}
"""Qwen3-235B at 8 ranks."""
DEEPSEEK = {"experts": 256, "width": 256, "hidden": 7168, "top_k": 8, "block_n": 128, "block_k": 128}
"""DeepSeek-V3 at 8 ranks, with its scales by blocks."""

PARAMS: Mapping[str, Any] = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 5,
    "SPLIT_K": 1,
    "triton_version": "3.8.0",
}
VLLM_DEFAULT = Config.of("vllm_default", {})
SGLANG_DEFAULT = Config.of("sglang_default", {})

Times = Mapping[int, Mapping[Config, float]]
"""Microseconds by tokens and config."""


def triton(**changes: Any) -> Config:
    return Config.of("triton_fused_moe", {**PARAMS, **changes})


def won(by: Mapping[int, Config | None]) -> Times:
    """At each number of tokens a config that beats the runtime's own, or none that does."""
    return {
        tokens: {
            VLLM_DEFAULT: 100.0,
            SGLANG_DEFAULT: 110.0,
            (config or triton(num_stages=2)): 80.0 if config else 120.0,
        }
        for tokens, config in by.items()
    }


def moe_cases(
    dims: Mapping[str, int],
    times: Times,
    dtype: str = "bf16",
    provenance: Provenance = Provenance.MEASURED,
    **rest: Any,
) -> list[Case]:
    """Each time once as a search measured it and once among the finalists."""
    found = []
    for tokens, at in times.items():
        workload = Workload.of(OPERATOR, dims, tokens, dtype=dtype, **rest)
        for config, us in at.items():
            found.append(Case(workload, config, us, provenance=provenance))
            found.append(Case(workload, config, us, Stage.FINAL, f"finals {workload} {dtype}", provenance=provenance))
    return found


def moe_plan(
    directory: Path,
    cases: Iterable[Case],
    target: Target = TARGET,
    provenances: Iterable[Provenance] = EVIDENCE,
    baselines: tuple[str, ...] = ("vllm_default", "sglang_default"),
) -> Plan:
    """The plan of the cases; its envelope is fixed, so that its bytes are the same every time."""
    with open_database(directory / "moe.db") as database, database.session() as session:
        fill(session, cases, target)
        plan = make_plan(
            session,
            name="experts",
            target=target.digest,
            regime=REGIME,
            baselines={OPERATOR: baselines},
            provenances=tuple(provenances),
        )
    created = Created(at="2026-11-30T12:00:00+00:00", by="megatune")
    return Plan(digest=plan.digest, created=created, content=plan.content)


def example_moe_plan(directory: Path) -> Plan:
    """BF16 experts that win up to 32 tokens, and FP8 ones whose own config is as good at 4."""
    few, some = triton(), triton(BLOCK_SIZE_N=64, num_stages=4)
    return moe_plan(
        directory,
        [
            *moe_cases(QWEN, won({1: few, 2: few, 4: few, 8: some, 16: some, 32: some, 64: None})),
            *moe_cases(DEEPSEEK, won({1: few, 2: few, 4: None, 8: some, 16: some}), "fp8_w8a8"),
        ],
    )


def on(gpu: str, **hardware: Any) -> Target:
    """The examples' target with another GPU."""
    return replace(TARGET, hardware=replace(TARGET.hardware, gpu=gpu, **hardware))


def moe_table(name: str) -> MoeTable:
    """The exporter of that name."""
    found = exporter(name)
    assert isinstance(found, MoeTable)
    return found
