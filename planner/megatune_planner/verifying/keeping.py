"""Keeping verifications, and reading them. Whoever calls commits."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db import verifications
from megatune_kernels.canonical import canonical_json
from megatune_planner.drafting import keep_draft
from megatune_planner.plan import Plan
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
