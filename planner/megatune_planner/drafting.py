"""Making a plan with everything that is registered here, and keeping it: what the command and the pages do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import store
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.models import model as catalogue_model
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_planner.context_errors import ContextErrors
from megatune_planner.exporters.base import expressible
from megatune_planner.objective import Objective
from megatune_planner.plan import Plan
from megatune_planner.planning import EVIDENCE
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan
from megatune_planner.preferred import defaults_on
from megatune_planner.preferred import incumbents_of
from megatune_planner.repeating import repeatability_of


def draft_plan(
    session: Session,
    *,
    name: str,
    target: str | None = None,
    regime: Regime | None = None,
    only_operators: Sequence[str] = (),
    provenances: Sequence[Provenance] = EVIDENCE,
    options: Options | None = None,
    incumbent: Plan | None = None,
    model: str | None = None,
    features: Sequence[str] = (),
    parent: str | None = None,
    context_errors: ContextErrors | None = None,
) -> Plan:
    """The plan that the measurements support, with the registered operators' baselines. Nothing is stored.

    :param target: digest; None for the only target that has measurements.
    :param regime: cold weights in a graph when it is not given.
    :param only_operators: names; empty for every registered operator.
    :param options: without an objective, the one of the last campaign on the target that has any.
    :param incumbent: the plan that serves today, whose configs win ties; without one the defaults do.
    :param model: a name of the catalogue: the one model to serve; without it every model that has the shapes.
    :param features: what may be switched on where the plan serves, by the names of ``features.py``.
    :param parent: digest of the plan that this one replaces.
    :param context_errors: measured at lengths of context, of the configs that serve.
    :raises MegatuneError: for an unknown target or operator, or when there are several targets.
    :raises NothingMeasured: when there is nothing to plan from, or nothing beats its baseline.
    """
    chosen = [operator(each) for each in only_operators] or list(operators().values())
    found = find_target(session, target)
    asked = options or Options()
    if asked.objective is None and (kept := queries.asked_objective(session, target=found.digest)) is not None:
        options = replace(asked, objective=Objective.of(**kept))
    made = make_plan(
        session,
        name=name,
        target=found.digest,
        regime=regime or Regime(),
        baselines={each.name: each.baselines for each in chosen},
        provenances=provenances,
        options=options,
        preferred=incumbents_of(incumbent) if incumbent else defaults_on(str(found.hardware.get("arch"))),
        expresses=expressible(),
        model=catalogue_model(model).name if model else None,
        features=features,
        parent=parent,
        context_errors=context_errors,
    )
    _check_objective(made, asked.objective)
    repeatability = repeatability_of(made, queries.repeats(session, target=found.digest))
    if repeatability is None:
        return made
    return Plan.of(made.content.model_copy(update={"repeatability": repeatability}))


def _check_objective(plan: Plan, asked: Objective | None) -> None:
    """:raises MegatuneError: where weights of routings were asked for, and no shape was measured at all of them."""
    weights = dict(asked.weights) if asked is not None else {}
    shapes = [shape for each in plan.content.operators for shape in each.shapes]
    if weights and all(shape.mix is None for shape in shapes):
        known = ", ".join(sorted({shape.routing for shape in shapes}))
        raise MegatuneError(
            f"no shape was measured at all of the routings {', '.join(weights)}: the plan would have {known}"
        )


def keep_draft(session: Session, plan: Plan) -> None:
    """Store the plan as a draft, and its target if need be; one with the same digest stays as it is."""
    content, target = plan.content, plan.content.target
    store.put_target(session, digest=target.digest, hardware=target.hardware, toolchain=target.toolchain)
    store.put_plan(
        session,
        digest=plan.digest,
        name=content.name,
        content=plan.to_json(),
        target=target.digest,
        model=content.gate.model,
        worlds=content.gate.worlds,
    )


def find_target(session: Session, wanted: str | None) -> queries.TargetRow:
    """The target of that digest, or the only one that has measurements.

    :raises MegatuneError: when there is no such target, or a choice is needed, with what there is.
    :raises NothingMeasured: when nothing was measured at all.
    """
    rows = [row for row in queries.targets(session, counted=False) if row.measurements]
    # What others measured is a choice only where it is named, or where there is nothing else.
    targets = [row for row in rows if row.measurements.keys() - {Provenance.IMPORTED} or row.digest == wanted] or rows
    if not targets:
        raise NothingMeasured("the database has no measurements: run a campaign first")
    found = [row for row in targets if wanted is None or row.digest == wanted]
    if len(found) != 1:
        known = ", ".join(f"{row.digest} ({row.hardware.get('gpu')})" for row in targets)
        problem = "there are several targets: choose one with --target" if wanted is None else f"no target {wanted!r}"
        raise MegatuneError(f"{problem}; the database has {known}")
    return found[0]
