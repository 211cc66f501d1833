"""Which configs win ties at a workload: what serves there already, or else the defaults of its space."""

from __future__ import annotations

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operators
from megatune_kernels.space import Config
from megatune_kernels.target import architecture
from megatune_planner.objective import ANY
from megatune_planner.plan import Plan
from megatune_planner.planning import Preferred


def incumbents_of(plan: Plan) -> Preferred:
    """The decisions of a plan that serves today; nothing where it says stock."""
    shapes = {(operator.name, *shape.key): shape for operator in plan.content.operators for shape in operator.shapes}

    def preferred(workload: Workload) -> frozenset[str]:
        key = (workload.operator, workload.shape, workload.dtype, workload.world)
        # One that was decided for several routings at once serves at each of them.
        shape = shapes.get((*key, workload.routing)) or shapes.get((*key, ANY))
        if shape is None:
            return frozenset()
        decision = shape.band(workload.tokens).decision
        return frozenset([decision.config]) if decision.kind == "config" else frozenset()

    return preferred


def defaults_on(arch: str) -> Preferred:
    """For each variant of a registered operator the config of its parameters' defaults.

    Nothing for an operator or an architecture that this installation does not know: a default only settles ties.
    """

    def preferred(workload: Workload) -> frozenset[str]:
        operator = operators().get(workload.operator)
        if operator is None:
            return frozenset()
        try:
            space = operator.space(workload, architecture(arch))
        except MegatuneError:
            return frozenset()
        return frozenset(
            Config.of(variant.variant, {parameter.name: parameter.default for parameter in variant.parameters}).digest
            for variant in space.variants
        )

    return preferred
