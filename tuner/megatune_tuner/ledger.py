"""The database's side of a campaign: what is known, and where everything that happens is written down at once.

Each method is one transaction. What a cell knows follows from these rows alone, so that a campaign can be killed at
any moment and go on from what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC
from datetime import datetime

from sqlalchemy.orm import Session

from megatune_db import store
from megatune_db.queries import CampaignRow
from megatune_db.queries import FinalRow
from megatune_db.queries import OutcomeRow
from megatune_db.queries import TrialRow
from megatune_db.queries import campaign
from megatune_db.queries import campaigns
from megatune_db.queries import final_sessions
from megatune_db.queries import incumbents
from megatune_db.queries import known_measurements
from megatune_db.queries import outcomes
from megatune_db.queries import trials
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.session import Database
from megatune_kernels.artifact import revision_of
from megatune_kernels.canonical import digest
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.target import Target
from megatune_tuner.bisection import Finals
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.priors import prior_configs
from megatune_tuner.reasons import BASELINE as BASELINE
from megatune_tuner.reasons import CROSSOVER as CROSSOVER
from megatune_tuner.reasons import FINALIST as FINALIST
from megatune_tuner.reasons import INCUMBENT as INCUMBENT
from megatune_tuner.reasons import KNOWN as KNOWN


class Ledger:
    """One campaign in one database, measured on one target in one regime.

    :param compiled: whether measurements are of kernels as their source is now. What was measured of another revision
        is then not known: it is measured again.
    """

    def __init__(
        self, database: Database, declared: Campaign, target: Target, provenance: Provenance, *, compiled: bool = False
    ) -> None:
        self._database = database
        self._compiled = compiled
        self._declared = declared
        self._target = target
        self._provenance = provenance
        self._regime: Regime = declared.measuring_regime()
        self._configs: set[tuple[str, str]] = set()
        self._artifacts: set[str] = set()
        with database.session() as session:
            store.put_target(
                session,
                digest=target.digest,
                hardware=asdict(target.hardware),
                toolchain=asdict(target.toolchain),
            )
            for workload in declared.workloads():
                _put_workload(session, workload)
            self._id = store.put_campaign(
                session,
                name=declared.name,
                file_text=declared.text,
                file_digest=digest(declared.text),
            )
        row = self.row()
        self._wall_s, self._measuring_s = row.wall_s, row.measuring_s
        self._started_at = row.started_at

    def row(self) -> CampaignRow:
        """The campaign and its progress."""
        with self._database.session() as session:
            found = campaign(session, self._declared.name)
        assert found is not None
        return found

    def put_workload(self, workload: Workload) -> None:
        """A workload beside those that the campaign lists."""
        with self._database.session() as session:
            _put_workload(session, workload)

    def begin(self) -> None:
        """The campaign runs from now on; what an earlier process asked for and never measured is stale.

        Whoever begins has the writer lock: any other campaign that says it runs was killed.
        """
        with self._database.session() as session:
            store.set_trials_stale(session, self._id)
            for row in campaigns(session):
                if row.id != self._id and row.state is CampaignState.RUNNING:
                    store.set_campaign(session, row.id, state=CampaignState.STOPPED)
            store.set_campaign(
                session,
                self._id,
                state=CampaignState.RUNNING,
                target=self._target.digest,
                budget=self._declared.budget.model_dump(exclude_none=True),
                started_at=self._started_at or _now(),
                finished_at=None,
            )

    def end(self, state: CampaignState, *, wall_s: float, measuring_s: float) -> None:
        """The campaign runs no more."""
        with self._database.session() as session:
            store.set_trials_stale(session, self._id)
            store.set_campaign(
                session,
                self._id,
                state=state,
                finished_at=_now() if state is CampaignState.FINISHED else None,
                wall_s=self._wall_s + wall_s,
                measuring_s=self._measuring_s + measuring_s,
            )

    def spend(self, *, wall_s: float, measuring_s: float) -> None:
        """How long this run has taken so far, and for how much of it the runner was busy, in seconds."""
        with self._database.session() as session:
            store.set_campaign(
                session,
                self._id,
                wall_s=self._wall_s + wall_s,
                measuring_s=self._measuring_s + measuring_s,
            )

    def trials(self, workload: Workload) -> list[TrialRow]:
        """What this campaign has taken up for the workload, the oldest first."""
        with self._database.session() as session:
            return trials(session, self._id, workload=workload.digest)

    def known(self, workload: Workload) -> dict[str, Measurement]:
        """Every search measurement of the workload here, by digest of its config, whichever campaign took it."""
        with self._database.session() as session:
            return known_measurements(
                session,
                workload=workload.digest,
                target=self._target.digest,
                regime=self._regime,
                provenance=self._provenance,
                revision=self._revision(workload),
            )

    def incumbents(self, workload: Workload) -> list[Config]:
        """The best known config of the workload on each target, of any provenance; the latest target first."""
        with self._database.session() as session:
            rows = incumbents(
                session,
                workload=workload.digest,
                regime=self._regime,
                baselines=operator(workload.operator).baselines,
            )
        return list(dict.fromkeys(Config.of(row.variant, row.params) for row in rows))

    def priors(self, workload: Workload) -> list[Config]:
        """What others found best of the workload: configs to try first, legal here or not."""
        with self._database.session() as session:
            return prior_configs(session, workload)

    def asked(self, workload: Workload, space: Space, proposals: Sequence[tuple[int, Config, str]]) -> None:
        """Configs that are about to be measured: trial number, config and who proposed it."""
        with self._database.session() as session:
            for number, config, reason in proposals:
                self._put_config(session, workload, config, space)
                self._add_trial(session, workload, config, number, reason, None)

    def reused(self, workload: Workload, space: Space, known: Iterable[tuple[Config, Measurement]]) -> None:
        """Measurements that were there already and that this campaign counts on."""
        with self._database.session() as session:
            for config, measurement in known:
                self._put_config(session, workload, config, space)
                row = store.add_measurement(session, measurement)
                self._add_trial(session, workload, config, 0, KNOWN, row, reused=True)

    def measured(
        self,
        workload: Workload,
        space: Space,
        results: Iterable[tuple[int, Config, str, Measurement, Sequence[Artifact]]],
    ) -> None:
        """Measurements of trials: number, config, who proposed it, what was measured and with which artifacts."""
        with self._database.session() as session:
            for number, config, reason, measurement, artifacts in results:
                self._put_config(session, workload, config, space)
                self._put_artifacts(session, artifacts)
                row = store.add_measurement(session, measurement)
                self._add_trial(session, workload, config, number, reason, row)

    def put_configs(self, workload: Workload, space: Space, configs: Iterable[Config]) -> None:
        """Configs whose measurements ``keep`` will be given."""
        with self._database.session() as session:
            for config in configs:
                self._put_config(session, workload, config, space)

    def keep(self, measurement: Measurement, artifacts: Sequence[Artifact]) -> None:
        """A measurement that is no trial."""
        with self._database.session() as session:
            self._put_artifacts(session, artifacts)
            store.add_measurement(session, measurement)

    def has_finals(self, workload: Workload) -> bool:
        """Whether finalists of the workload were measured here."""
        return bool(self._final_sessions(workload))

    def finals(self, workload: Workload, space: Space) -> Finals:
        """The finalists of the workload that worked: of the latest session that compared most variants of the space.

        Others can have campaigns here that search less.
        """
        baselines = operator(workload.operator).baselines
        found: dict[Config, tuple[float, ...]] = {}
        for rows in self._final_sessions(workload):
            named = {Config.of(row.variant, row.params): row.measurement.samples_us for row in rows}
            mine = {c: us for c, us in named.items() if c.variant in baselines or not space.violations(c)}
            if len({config.variant for config in mine}) > len({config.variant for config in found}):
                found = mine
        return found

    def outcomes(self, baselines: Sequence[str]) -> list[OutcomeRow]:
        """The best config of each workload against its fastest baseline."""
        with self._database.session() as session:
            return outcomes(session, self._id, baselines)

    def _final_sessions(self, workload: Workload) -> list[list[FinalRow]]:
        with self._database.session() as session:
            sessions = final_sessions(
                session,
                workload=workload.digest,
                target=self._target.digest,
                regime=self._regime,
                provenance=self._provenance,
            )
        revision = self._revision(workload)
        if revision is None:
            return sessions
        # Baselines are of no revision.
        return [
            rows
            for rows in sessions
            if {row.measurement.revision for row in rows if row.measurement.artifact} == {revision}
        ]

    def _revision(self, workload: Workload) -> str | None:
        """Of the kernels; None where every revision counts."""
        return revision_of(operator(workload.operator)) if self._compiled else None

    def _add_trial(
        self,
        session: Session,
        workload: Workload,
        config: Config,
        number: int,
        reason: str,
        measurement_id: int | None,
        *,
        reused: bool = False,
    ) -> None:
        store.add_trial(
            session,
            campaign_id=self._id,
            workload=workload.digest,
            config=config.digest,
            number=number,
            measurement_id=measurement_id,
            reason=reason,
            reused=reused,
        )

    def _put_config(self, session: Session, workload: Workload, config: Config, space: Space) -> None:
        # Remembering across a rollback would leave a config out; nothing here goes on after one.
        if (workload.operator, config.digest) in self._configs:
            return
        variant = space.by_variant.get(config.variant)
        changes = any(parameter.changes_bits for parameter in variant.parameters) if variant is not None else None
        store.put_config(
            session,
            digest=config.digest,
            operator=workload.operator,
            variant=config.variant,
            params=config.params,
            changes_bits=changes,
        )
        self._configs.add((workload.operator, config.digest))

    def _put_artifacts(self, session: Session, artifacts: Sequence[Artifact]) -> None:
        for artifact in artifacts:
            if artifact.key in self._artifacts:
                continue
            store.put_artifact(
                session,
                key=artifact.key,
                arch=artifact.arch,
                entry=artifact.entry,
                registers=artifact.registers,
                local_bytes=artifact.local_bytes,
                cubin_bytes=len(artifact.cubin),
                dsl=self._target.toolchain.dsl,
            )
            self._artifacts.add(artifact.key)


def _put_workload(session: Session, workload: Workload) -> None:
    store.put_workload(session, digest=workload.digest, shape=workload.shape, **workload.to_dict())


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
