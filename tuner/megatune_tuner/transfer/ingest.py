"""Taking the measurements of a result into a database, as if the campaign had taken them there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.dialects import wait_for_imports
from megatune_db.queries import campaign
from megatune_db.queries import trials
from megatune_db.records import CampaignState
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_kernels.target import architecture_of
from megatune_tuner.rows import put_config
from megatune_tuner.rows import put_target
from megatune_tuner.rows import put_workload
from megatune_tuner.transfer.result import Result
from megatune_tuner.transfer.result import Taken


@dataclass(frozen=True)
class Ingested:
    """What taking a result in has come to."""

    campaign: str
    target: Target
    taken: int
    """Measurements in the result, finalists among them."""
    new: int
    """Of them, those that the database did not have."""
    complete: bool
    """Whether the bundle was measured to its end."""


def ingest(session: Session, result: Result) -> Ingested:
    """Add a result's measurements to the database, and its trials to the campaign, once however often it is called.

    Measurements keep target, artifacts, revision, regime, provenance and samples; finalists stay paired. What was
    measured there before stays as it is.
    """
    wait_for_imports(session)
    header = result.header
    target = header.target
    put_target(session, target)
    for artifact in header.artifacts:
        store.put_artifact(session, **artifact, dsl=target.toolchain.dsl)
    taken = list(result.taken)
    _put_configs(session, taken, target)
    new = store.add_measurements(session, [one.measurement for one in taken])
    _put_trials(session, result)
    return Ingested(header.campaign, target, len(taken), new, result.complete)


def _put_configs(session: Session, taken: Iterable[Taken], target: Target) -> None:
    changing: dict[Workload, frozenset[str]] = {}
    done: set[tuple[str, str]] = set()
    for one in taken:
        workload = one.workload
        if workload not in changing:
            put_workload(session, workload)
            changing[workload] = _changing_bits(workload, target)
        if (workload.operator, one.config.digest) not in done:
            done.add((workload.operator, one.config.digest))
            changes = _changes_bits(workload, one.config, changing[workload])
            put_config(session, workload, one.config, changes_bits=changes)


def _changing_bits(workload: Workload, target: Target) -> frozenset[str]:
    """Variants whose configs can differ in the bits of their results; none where the operator is not here."""
    with suppress(MegatuneError):
        space = operator(workload.operator).space(workload, architecture_of(target.hardware))
        return frozenset(
            name for name, variant in space.by_variant.items() if any(each.changes_bits for each in variant.parameters)
        )
    return frozenset()


def _changes_bits(workload: Workload, config: Config, changing: frozenset[str]) -> bool | None:
    try:
        tuned = config.variant in operator(workload.operator).variants
    except MegatuneError:
        tuned = False
    return config.variant in changing if tuned else None


def _put_trials(session: Session, result: Result) -> None:
    header = result.header
    before = campaign(session, header.campaign)
    if before is None:
        found = store.put_campaign(
            session, name=header.campaign, file_text=header.text, file_digest=digest(header.text)
        )
        store.set_campaign(
            session,
            found,
            state=CampaignState.STOPPED,
            target=header.target.digest,
            budget=dict(header.budget),
        )
    else:
        found = before.id
    # Another target's result of the same bundle has the same numbers, and takes no trial from the first one.
    measured = {
        (row.workload, row.config, row.number, row.reason)
        for row in trials(session, found)
        if row.measurement_id is not None
    }
    for one in result.taken:
        if (one.workload.digest, one.config.digest, one.number, one.reason) in measured:
            continue
        store.add_trial(
            session,
            campaign_id=found,
            workload=one.workload.digest,
            config=one.config.digest,
            number=one.number,
            measurement_id=store.add_measurement(session, one.measurement),
            reason=one.reason,
            reused=False,
        )
