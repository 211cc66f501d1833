"""Whether a plan's figures still stand: what changed since they were measured, and who has verified it since.

A driver, a DSL or kernels that changed can change every figure of a plan. Then a verification is what says that it
holds all the same; without one, that is a warning wherever the plan is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import NamedTuple

from megatune_db.queries import TargetRow
from megatune_db.queries import VerificationRow
from megatune_db.records import Provenance
from megatune_kernels.artifact import revision_of
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operators
from megatune_planner.plan import Plan
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

REAL = (Provenance.MEASURED, Provenance.EMULATED)
"""What a verification has to rest on to say something of a target as it is now: a replay is of another day."""


class Finding(NamedTuple):
    """What is wrong with how a plan was verified."""

    kind: Literal["verification", "toolchain"]
    """``verification``: the last did not show that it holds; ``toolchain``: something changed, and none was since."""
    text: str
    """In one line."""


def installed_revisions(plan: Plan) -> dict[str, str]:
    """Digest of the source of the kernels that are installed here, of each operator of the plan that is."""
    found = {}
    for each in plan.content.operators:
        tuned = operators().get(each.name)
        if tuned is not None:
            try:
                found[each.name] = revision_of(tuned)
            except MegatuneError:  # what cannot be fingerprinted cannot be said to have changed
                continue
    return found


def verification_findings(
    plan: Plan,
    targets: Sequence[TargetRow] = (),
    verifications: Sequence[VerificationRow] = (),
    revisions: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What is wrong with how the plan was verified; empty where nothing is.

    :param targets: of the database, in the order in which they were first seen.
    :param verifications: of this plan, the newest first.
    :param revisions: of the kernels that would serve, by operator; None: those that are installed here.
    """
    here = installed_revisions(plan) if revisions is None else revisions
    changed = [*_toolchain(plan, targets, verifications), *_kernels(plan, here, verifications)]
    return [
        *(Finding("verification", text) for text in _latest(verifications)),
        *(Finding("toolchain", text) for text in changed),
    ]


def _latest(verifications: Sequence[VerificationRow]) -> Iterator[str]:
    # A replay says nothing against what was measured, nor for it.
    real = [row for row in verifications if row.provenance in REAL]
    latest = next(iter(real or verifications), None)
    if latest is not None and latest.verdict != Verdict.HOLDS:
        told = {Verdict.DRIFTED: "it has drifted"}.get(Verdict(latest.verdict), "it cannot be told whether it holds")
        yield f"verified on {latest.at:%Y-%m-%d}: {told}: {latest.reason}"


def _toolchain(plan: Plan, targets: Sequence[TargetRow], verifications: Sequence[VerificationRow]) -> Iterator[str]:
    mine = plan.content.target
    newest = newest_toolchain(plan, targets, verifications)
    if newest is None or newest == mine.toolchain or _holds(verifications, toolchain=newest):
        return
    changed = ", ".join(
        f"{name} {mine.toolchain.get(name)} to {value}"
        for name, value in sorted(newest.items())
        if value != mine.toolchain.get(name)
    )
    yield (
        f"the same hardware was measured since with another toolchain: {changed}; no verification shows that the plan "
        "holds on it: megatune verify it there, or plan again on it"
    )


def newest_toolchain(
    plan: Plan, targets: Sequence[TargetRow], verifications: Sequence[VerificationRow] = ()
) -> Mapping[str, Any] | None:
    """The toolchain with which the plan's hardware was measured or verified last; None where it never was."""
    mine = plan.content.target
    seen = [(row.created_at, row.toolchain) for row in targets if row.hardware == mine.hardware and row.measurements]
    seen += [(row.at, row.toolchain) for row in reversed(verifications) if row.provenance in REAL]
    return sorted(seen, key=lambda each: each[0])[-1][1] if seen else None


def _kernels(plan: Plan, here: Mapping[str, str], verifications: Sequence[VerificationRow]) -> Iterator[str]:
    for each in plan.content.operators:
        was = {shape.revision for shape in each.shapes if shape.revision}
        now = here.get(each.name)
        serves = any(band.decision.kind == "config" for shape in each.shapes for band in shape.bands)
        if now is None or not was or not serves or was == {now} or _holds(verifications, kernels=(each.name, now)):
            continue
        before = " and ".join(sorted(revision[:12] for revision in was))
        yield (
            f"the installed kernels of {each.name} are not those that were measured ({before}, now {now[:12]}); no "
            "verification shows that the plan holds with them: megatune verify it on its target, or measure again"
        )


def _holds(
    verifications: Sequence[VerificationRow],
    *,
    toolchain: Mapping[str, Any] | None = None,
    kernels: tuple[str, str] | None = None,
) -> bool:
    """Whether the last verification with that toolchain, or with those kernels, showed that the plan holds."""
    for row in verifications:
        if row.provenance not in REAL or (toolchain is not None and row.toolchain != toolchain):
            continue
        if kernels is not None:
            name, revision = kernels
            if Verification.model_validate_json(row.document).revisions.get(name) != revision:
                continue
        return row.verdict == Verdict.HOLDS
    return False
