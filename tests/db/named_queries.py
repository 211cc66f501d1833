"""Every named query, with something to ask it, and which of them may walk a large table, and why."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db import models
from megatune_db import queries
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Status

LARGE = ("megatune_measurements", "megatune_trials")
"""Tables that grow with what is measured."""
MAY_WALK = {
    "targets": "counts every measurement, which only whoever asks for it gets",
    "table_sizes": "counts every row of every table, for one page",
    "trial_pace_s": "walks trials from the latest one and stops after a hundred of the campaign's",
}
"""Queries that may walk a large table or an index of it from one end; all others look up what they read."""
MAY_READ_MOST = {
    "contenders": "a target's every ok measurement may be a contender",
    "export_rows": "a recording is everything that was measured on a target",
    "workloads": "counts what was measured on a target",
    "status_by_workload": "counts what was measured on a target",
    "shapes_version": "counts what was measured of its shapes",
    "outcomes": "reads all measurements of a campaign",
    "campaigns": "counts the trials of every campaign",
    "campaign": "counts the trials of a campaign",
    "status_counts": "reads all measurements of a campaign",
    "trials": "is every trial of a campaign",
    "campaign_workloads": "finds the workloads among all trials of a campaign",
}
"""What these ask for may be a large part of a table, which is then fastest read from its beginning to its end."""


@dataclass(frozen=True)
class Asked:
    """What is in the database that the queries are asked about."""

    target: str
    workload: str
    regime: Regime
    operator: str
    provenance: Provenance
    baselines: tuple[str, ...]
    variant: str
    parameter: str
    campaign_id: int
    campaign: str
    measurement: int


def asked(session: Session, baselines: tuple[str, ...]) -> Asked:
    """About the first campaign and the first measurement of it."""
    campaign = session.scalars(select(models.Campaign).order_by(models.Campaign.id)).first()
    assert campaign is not None
    trial = session.scalars(
        select(models.Trial).where(models.Trial.campaign_id == campaign.id).order_by(models.Trial.id)
    ).first()
    assert trial is not None
    row = session.get(models.Measurement, trial.measurement_id)
    assert row is not None
    workload, config, target = (
        session.get(table, id_)
        for table, id_ in (
            (models.Workload, row.workload_id),
            (models.Config, row.config_id),
            (models.Target, row.target_id),
        )
    )
    assert isinstance(workload, models.Workload)
    assert isinstance(config, models.Config)
    assert isinstance(target, models.Target)
    return Asked(
        target.digest,
        workload.digest,
        Regime.parse(row.regime),
        workload.operator,
        row.provenance,
        baselines,
        config.variant,
        next(iter(config.params), "rows"),
        campaign.id,
        campaign.name,
        row.id,
    )


def _shape(session: Session, a: Asked) -> queries.ShapeRow:
    w = session.scalars(select(models.Workload).where(models.Workload.digest == a.workload)).one()
    same = select(models.Workload).where(models.Workload.operator == w.operator, models.Workload.shape == w.shape)
    tokens = tuple(sorted((each.tokens, each.digest) for each in session.scalars(same) if each.world == w.world))
    return queries.ShapeRow(
        a.target, a.regime, a.provenance, w.operator, w.shape, w.dims, w.dtype, w.world, w.routing, tokens
    )


QUERIES: dict[str, Callable[[Session, Asked], object]] = {
    "artifacts": lambda s, a: queries.artifacts(s, ["a", "b"]),
    "asked_objective": lambda s, a: queries.asked_objective(s, target=a.target),
    "campaign": lambda s, a: queries.campaign(s, a.campaign),
    "campaign_log": lambda s, a: queries.campaign_log(s, a.campaign_id),
    "campaign_names": lambda s, a: queries.campaign_names(s),
    "campaign_workloads": lambda s, a: queries.campaign_workloads(s, a.campaign_id),
    "campaigns": lambda s, a: queries.campaigns(s),
    "contenders": lambda s, a: queries.contenders(
        s, target=a.target, regime=a.regime, provenances=[a.provenance], baselines=a.baselines
    ),
    "contenders of an operator": lambda s, a: queries.contenders(
        s, target=a.target, regime=a.regime, provenances=[*Provenance], baselines=a.baselines, operator=a.operator
    ),
    "contenders of workloads": lambda s, a: queries.contenders(
        s,
        target=a.target,
        regime=a.regime,
        provenances=[a.provenance],
        baselines=a.baselines,
        workloads=[a.workload],
    ),
    "earlier_plans": lambda s, a: queries.earlier_plans(s, "plan"),
    "export_rows": lambda s, a: next(queries.export_rows(s, target=a.target, regime=a.regime), None),
    "failing_configs": lambda s, a: queries.failing_configs(s),
    "failure_counts": lambda s, a: queries.failure_counts(s),
    "failures": lambda s, a: queries.failures(s),
    "failures of one kind": lambda s, a: queries.failures(s, statuses=(Status.HANG,)),
    "failures of a campaign": lambda s, a: queries.failures(s, campaign_id=a.campaign_id),
    "failures of a workload": lambda s, a: queries.failures(s, workload=a.workload),
    "final_sessions": lambda s, a: queries.final_sessions(
        s, workload=a.workload, target=a.target, regime=a.regime, provenance=a.provenance
    ),
    "imported_configs": lambda s, a: queries.imported_configs(s, a.workload, 5),
    "incumbents": lambda s, a: queries.incumbents(s, workload=a.workload, regime=a.regime, baselines=a.baselines),
    "known_measurements": lambda s, a: queries.known_measurements(
        s, workload=a.workload, target=a.target, regime=a.regime, provenance=a.provenance, revision="r1"
    ),
    "measured_shapes": lambda s, a: queries.measured_shapes(s),
    "measurements": lambda s, a: queries.measurements(s, [a.measurement, a.measurement + 1]),
    "outcomes": lambda s, a: queries.outcomes(s, a.campaign_id, a.baselines),
    "parameter_curves": lambda s, a: queries.parameter_curves(
        s, _shape(s, a), variant=a.variant, parameter=a.parameter
    ),
    "plan": lambda s, a: queries.plan(s, "plan"),
    "plan_export": lambda s, a: queries.plan_export(s, 1),
    "plan_exports": lambda s, a: queries.plan_exports(s, "plan"),
    "plan_in_service": lambda s, a: queries.plan_in_service(s, "plan"),
    "plan_summaries": lambda s, a: queries.plan_summaries(s),
    "plans": lambda s, a: queries.plans(s),
    "priors": lambda s, a: queries.priors(s),
    "refuted": lambda s, a: queries.refuted(s, target=a.target, regime=a.regime, provenances=[*Provenance]),
    "repeats": lambda s, a: queries.repeats(s, target=a.target),
    "replaced_plan": lambda s, a: queries.replaced_plan(s, "plan"),
    "reviews": lambda s, a: queries.reviews(s, "plan"),
    "samples": lambda s, a: queries.samples(s, [a.measurement, a.measurement + 1]),
    "shapes_version": lambda s, a: queries.shapes_version(s, (_shape(s, a),)),
    "status_by_workload": lambda s, a: queries.status_by_workload(
        s, target=a.target, regime=a.regime, operator=a.operator, provenance=a.provenance
    ),
    "status_counts": lambda s, a: queries.status_counts(s, a.campaign_id),
    "stored_samples": lambda s, a: queries.stored_samples(s, a.measurement),
    "table_sizes": lambda s, a: queries.table_sizes(s),
    "targets": lambda s, a: queries.targets(s),
    "targets, not counted": lambda s, a: queries.targets(s, counted=False),
    "trial_pace_s": lambda s, a: queries.trial_pace_s(s, a.campaign_id),
    "trials": lambda s, a: queries.trials(s, a.campaign_id),
    "trials of a workload": lambda s, a: queries.trials(s, a.campaign_id, workload=a.workload),
    "troubled_jobs": lambda s, a: queries.troubled_jobs(s),
    "verifications": lambda s, a: queries.verifications(s, "plan"),
    "workers": lambda s, a: queries.workers(s),
    "workloads": lambda s, a: queries.workloads(s, target=a.target, regime=a.regime, operator=a.operator),
}
"""By the query's name, and what it is asked."""


def missing() -> set[str]:
    """Named queries that are not asked anything here."""
    named = {name for name in queries.__all__ if inspect.isfunction(getattr(queries, name))}
    return named - {name.replace(",", " ").split()[0] for name in QUERIES}


def may_walk(name: str) -> bool:
    return name in MAY_WALK


def may_read_most(name: str) -> bool:
    return name.split()[0] in MAY_READ_MOST
