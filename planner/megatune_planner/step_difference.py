"""What replacing one plan by another does to a whole decode step: predicted, from the parts that plans measured."""

from __future__ import annotations

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import model as catalogue_model
from megatune_planner.plan import Plan
from megatune_planner.schema import Part
from megatune_planner.schema import Tokens
from megatune_planner.serving.bounds import Bounds
from megatune_planner.step_review import Deployment
from megatune_planner.step_review import StepTimes
from megatune_planner.step_review import deployments
from megatune_planner.step_review import predicted_steps

Interval = tuple[float, float]
"""Both ends, µs."""


class StepEffect(Part):
    """A step of so many tokens, of the parts that are known."""

    tokens: Tokens
    """Rows of the step."""
    stock_us: Interval
    """With stock alone."""
    before_us: Interval
    """With the first plan."""
    after_us: Interval
    """With the second plan."""
    change_us: Interval
    """From the first to the second: below 0 is faster. Parts that are the same in both cannot change it."""


class StepDifference(Part):
    """Steps of a model on a number of ranks. No figure is measured: each is a sum of parts that were."""

    model: str
    """Name in the catalogue."""
    ranks: int
    """Tensor-parallel."""
    provenance: str = "predicted"
    """Of every figure here."""
    parts: tuple[str, ...]
    """What is summed up."""
    missing: tuple[str, ...]
    """What nobody measured, and is left out on all sides."""
    steps: tuple[StepEffect, ...]
    """At each number of tokens that the second plan measured, ascending."""


def step_differences(before: Plan, after: Plan, model: str | None = None) -> tuple[StepDifference, ...]:
    """For each number of ranks that the plans know much of, what becomes of the step.

    :param model: of the catalogue; None for the plan's own, or the one of whose step it knows the most parts.
    :returns: nothing where the plans are of two targets or regimes, or know no part of a step.
    :raises MegatuneError: for a model that the catalogue does not have, or that the plan does not hold for.
    """
    content = after.content
    wanted = None if model is None else catalogue_model(model).name
    if wanted is not None and content.gate.model not in (None, wanted):
        raise MegatuneError(f"the plan holds for {content.gate.model} alone, not for {wanted}")
    if (before.content.target.digest, before.content.regime) != (content.target.digest, content.regime):
        return ()
    found = deployments(after)
    if found and wanted is None:
        wanted = found[0].model.name
    of_model = [each for each in found if each.model.name == wanted]
    most = max((each.known for each in of_model), default=0)
    # A shape or two that another number of ranks happens to share make no step.
    of_model = sorted((each for each in of_model if 2 * each.known >= most), key=lambda each: each.tensor)
    made = (_difference(each, predicted_steps(after, before, each)) for each in of_model)
    return tuple(each for each in made if each is not None)


def _difference(of: Deployment, steps: tuple[StepTimes, ...]) -> StepDifference | None:
    if not steps:
        return None
    return StepDifference(
        model=of.model.name,
        ranks=of.tensor,
        parts=tuple(dict.fromkeys(part.name for step in steps for part in step.parts)),
        missing=tuple(dict.fromkeys(name for step in steps for name in step.missing)),
        steps=tuple(
            StepEffect(
                tokens=step.tokens,
                stock_us=_ends(step.stock_us),
                before_us=_ends(step.before_us),
                after_us=_ends(step.after_us),
                change_us=(-step.saved_us.high, -step.saved_us.low),
            )
            for step in steps
        ),
    )


def _ends(bounds: Bounds) -> Interval:
    return (bounds.low, bounds.high)
