"""Fallback rules: for which steps the plan holds, as data that is evaluated top down."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from megatune_planner.band_schema import Band
from megatune_planner.context_errors import ContextErrors
from megatune_planner.context_errors import context_rules
from megatune_planner.plan import OperatorPlan
from megatune_planner.plan import PlanTarget
from megatune_planner.plan import ShapePlan
from megatune_planner.rules import ContextTooLong
from megatune_planner.rules import Covered
from megatune_planner.rules import MissingLink
from megatune_planner.rules import OtherDeployment
from megatune_planner.rules import OtherHardware
from megatune_planner.rules import OtherToolchain
from megatune_planner.rules import Otherwise
from megatune_planner.rules import OtherWorkload
from megatune_planner.rules import OutsideTokens
from megatune_planner.rules import Rule
from megatune_planner.rules import StockWon
from megatune_planner.rules import WorkspaceTooSmall


def fallback_rules(
    target: PlanTarget, operators: Sequence[OperatorPlan], errors: ContextErrors | None = None
) -> tuple[Rule, ...]:
    """The rules of a plan: what it does not hold for, where stock won, what its bands cover, and stock for the rest.

    :param errors: measured at lengths of context.
    :raises MegatuneError: for errors that are not those of what serves.
    """
    contexts = {} if errors is None else context_rules(errors, target.digest, operators)
    shapes = [(operator.name, shape) for operator in operators for shape in operator.shapes]
    return (
        OtherHardware(
            reason="the best config changes with the GPU, its clocks and its links: nothing was measured on others",
        ),
        OtherToolchain(
            reason="the best config changes with the compiler and the driver: measure again after an upgrade",
        ),
        OtherDeployment(
            reason="nothing was measured with another model, world or execution, or with what the gate does not accept",
        ),
        OtherWorkload(
            dtypes=tuple(sorted({shape.dtype for _, shape in shapes})),
            worlds=tuple(sorted({shape.world for _, shape in shapes})),
            reason="a limit in tokens does not carry over to another shape, dtype, world or routing",
        ),
        *_of_groups(target, [shape for _, shape in shapes]),
        *(rule for name, shape in shapes for rule in _of_shape(name, shape, contexts.get((name, *shape.key)))),
        Covered(reason="measured, or predicted between two measured numbers of tokens"),
        Otherwise(reason="whatever no rule names was not measured"),
    )


def _of_groups(target: PlanTarget, shapes: Sequence[ShapePlan]) -> Iterator[Rule]:
    worlds = tuple(sorted({shape.world for shape in shapes if shape.world > 1}))
    if worlds:
        yield MissingLink(
            links=str(target.hardware["links"]),
            worlds=worlds,
            reason="ranks write into one another's memory, and wait for what never comes where one cannot",
        )


def _of_shape(operator: str, shape: ShapePlan, context: ContextTooLong | None) -> Iterator[Rule]:
    where = {
        "operator": operator,
        "shape": shape.shape,
        "dtype": shape.dtype,
        "world": shape.world,
        "routing": shape.routing,
    }
    needed = max((b.decision.workspace_bytes for b in shape.bands if b.decision.kind == "config"), default=0)
    if needed:
        writers = "peers write" if shape.world > 1 else "its kernels write"
        yield WorkspaceTooSmall.model_validate(
            {
                **where,
                "workspace_bytes": needed,
                "reason": f"{writers} into this memory, and beyond its end where it is too small",
            }
        )
    first, last = shape.measured_tokens[0], shape.measured_tokens[-1]
    yield OutsideTokens.model_validate(
        {
            **where,
            "below": first,
            "above": last,
            "reason": f"measured from {first} to {last} tokens only",
            "evidence": _evidence([band for band in shape.bands if band.points], ends=True),
        }
    )
    for band in shape.bands:
        if band.decision.kind == "stock" and band.points:
            yield StockWon.model_validate(
                {
                    **where,
                    "tokens_lo": band.points[0].tokens,
                    "tokens_hi": band.tokens_hi,
                    "reason": band.reason,
                    "evidence": _evidence([band], ends=False),
                }
            )
    if context is not None:
        yield context


def _evidence(bands: Sequence[Band], *, ends: bool) -> tuple[int, ...]:
    """Ids of the measurements behind the bands' points, or behind their first and last alone."""
    points = [point for band in bands for point in band.points]
    return tuple(sorted({id_ for point in ((points[0], points[-1]) if ends else points) for id_ in point.evidence}))
