"""What SGLang reads of measured collectives: the one-shot limit of its all-reduce, and tables of Kimi K3's own."""

from __future__ import annotations

from megatune_planner.exporters import sglang_allreduce
from megatune_planner.exporters import sglang_sp_collective
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.reduction import OPERATOR
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.sp_collective_schema import STRATEGIES
from megatune_planner.plan import Plan


class Sglang(Exporter):
    """From reductions ``sglang_allreduce.json``; from reduce-scatters and all-gathers a table for each world, with the
    wheel that puts it in its place; of each the same to read."""

    name = "sglang"
    what = (
        f"the one-shot limit of the all-reduce of SGLang 0.5.23, {sglang_allreduce.VARIABLE}, and tables of its "
        "sequence-parallel collectives"
    )
    runtime = "sglang"
    runtime_version = "0.5.23"
    relies_on = {**sglang_allreduce.RELIES_ON, **sglang_sp_collective.RELIES_ON}  # noqa: RUF012  (nothing writes to it)

    def files(self, plan: Plan) -> dict[str, str | bytes]:
        runtime = Runtime(name=self.runtime, version=self.runtime_version)
        found: dict[str, str | bytes] = {}
        names = {operator.name for operator in plan.content.operators}
        if OPERATOR in names or names.isdisjoint(STRATEGIES):
            found |= sglang_allreduce.files(plan, self.name, runtime)
        if not names.isdisjoint(STRATEGIES):
            found |= sglang_sp_collective.files(plan, self.name, runtime)
        return found
