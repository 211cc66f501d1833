"""Keeping verifications, and reading them. Whoever calls commits."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import verifications
from megatune_db.records import Regime
from megatune_kernels.canonical import canonical_json
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.drafting import keep_draft
from megatune_planner.plan import Plan
from megatune_planner.verifying.checks import Checks
from megatune_planner.verifying.judging import Then
from megatune_planner.verifying.standing import Finding
from megatune_planner.verifying.standing import verification_findings
from megatune_planner.verifying.verification import Verification


def keep_verification(session: Session, plan: Plan, found: Verification, who: str) -> int:
    """The id of the verification's row; a plan that the database does not have is kept as a draft first.

    :raises LookupError: when nothing was measured on its target.
    """
    keep_draft(session, plan)
    return verifications.add_verification(
        session,
        plan=plan.digest,
        target=found.target,
        at=datetime.fromisoformat(found.at),
        who=who,
        provenance=found.provenance,
        verdict=found.verdict,
        reason=found.reason,
        document=canonical_json(found.model_dump(mode="json")),
    )


def findings_of(session: Session | None, plan: Plan) -> list[Finding]:
    """What is wrong with how a plan was verified, as the database and the installed kernels say.

    :param session: None where there is no database.
    """
    if session is None:
        return verification_findings(plan)
    return verification_findings(
        plan, queries.targets(session, counted=False), queries.verifications(session, plan.digest)
    )


def times_then(session: Session, plan: Plan, checks: Checks) -> Then:
    """What the configs of neighbouring bands took when the plan was made, of which the plan keeps the deciding ones.

    Of a workload that the database never saw nothing is said: its measurements are elsewhere.
    """
    found: dict[tuple[Workload, Config], float | None] = {}
    times: dict[Workload, dict[str, float | None]] = {}
    for band_end in checks.ends:
        workload = band_end.workload
        for rival in (each for each in band_end.rivals if each.kind == "neighbour"):
            if workload not in times:
                times[workload] = _times(session, plan, workload)
            if times[workload]:
                found[workload, rival.config] = times[workload].get(rival.config.digest)
    return found


def _times(session: Session, plan: Plan, workload: Workload) -> dict[str, float | None]:
    """Of every config that was measured, by digest; the latest finals before searches."""
    times: dict[str, float | None] = {}
    target, regime = plan.content.target.digest, Regime.parse(plan.content.regime)
    for provenance in plan.content.coverage.measurements:
        finals = queries.final_sessions(
            session, workload=workload.digest, target=target, regime=regime, provenance=provenance
        )
        for row in (row for rows in finals for row in rows):
            times.setdefault(row.measurement.config, row.measurement.median_us)
        searched = queries.known_measurements(
            session, workload=workload.digest, target=target, regime=regime, provenance=provenance
        )
        for config, measurement in searched.items():
            times.setdefault(config, measurement.median_us)
    return times
