"""The database's side of a campaign: what is known, and where everything that happens is written down at once.

Each method is one transaction. What a cell knows follows from these rows alone, so that a campaign can be killed at
any moment and go on from what is committed. How it goes on follows from them too: what was there when the campaign
began is told apart from what came since, so that the same asks are made again and give the same proposals.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import UTC
from datetime import datetime

from sqlalchemy.orm import Session

from megatune_db import election
from megatune_db import leases
from megatune_db import store
from megatune_db.election import Beginning
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
from megatune_db.records import JobState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
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
from megatune_tuner.objectives import objective_row
from megatune_tuner.priors import prior_configs
from megatune_tuner.reasons import BASELINE as BASELINE
from megatune_tuner.reasons import CROSSOVER as CROSSOVER
from megatune_tuner.reasons import FINALIST as FINALIST
from megatune_tuner.reasons import INCUMBENT as INCUMBENT
from megatune_tuner.reasons import KNOWN as KNOWN
from megatune_tuner.rows import put_artifact
from megatune_tuner.rows import put_config
from megatune_tuner.rows import put_target
from megatune_tuner.rows import put_workload
from megatune_tuner.transactions import Transactions


class Ledger:
    """One campaign in one database, measured on one target in one regime.

    :param compiled: whether measurements are of kernels as their source is now. What was measured of another revision
        is then not known: it is measured again.
    """

    def __init__(
        self,
        transactions: Transactions,
        declared: Campaign,
        target: Target,
        provenance: Provenance,
        *,
        compiled: bool = False,
    ) -> None:
        self._transactions = transactions
        transactions.rolled_back = self.forget
        self._compiled = compiled
        self._begun: Beginning | None = None
        self._declared = declared
        self._target = target
        self._provenance = provenance
        self._regime: Regime = declared.measuring_regime()
        self._configs: dict[tuple[str, str], int] = {}
        self._workloads: dict[Workload, int] = {}
        self._artifacts: set[str] = set()

        def write(session: Session) -> int:
            put_target(session, target)
            for workload in declared.workloads():
                put_workload(session, workload)
            return store.put_campaign(
                session,
                name=declared.name,
                file_text=declared.text,
                file_digest=digest(declared.text),
                objective=objective_row(declared),
            )

        self.campaign_id = transactions.write(write)
        row = self.row()
        self._wall_s, self._measuring_s = row.wall_s, row.measuring_s
        self._started_at = row.started_at

    def row(self) -> CampaignRow:
        """The campaign and its progress."""
        found = self._transactions.read(lambda session: campaign(session, self._declared.name))
        assert found is not None
        return found

    def put_workload(self, workload: Workload) -> None:
        """A workload beside those that the campaign lists."""
        self._transactions.write(lambda session: put_workload(session, workload))

    def begin(self, spaces: Mapping[Workload, Space]) -> None:
        """The campaign runs from now on, on the way that it had begun; a new way begins where it had ended.

        Any other campaign that says it runs, and that nobody coordinates, was killed.
        """
        term = self._transactions.term
        revisions = {each.operator: self.revision(each) for each in spaces}
        basis = digest([self._declared.text, self._target.digest, self._provenance, revisions])

        def write(session: Session) -> Beginning | None:
            before = campaign(session, self._declared.name)
            assert before is not None
            coordinated = election.holders(session)
            for row in campaigns(session):
                if row.id != self.campaign_id and row.state is CampaignState.RUNNING and row.id not in coordinated:
                    store.set_trials_stale(session, row.id)
                    store.set_campaign(session, row.id, state=CampaignState.STOPPED)
            begun = None
            if term is not None:
                ended = before.state in (CampaignState.CREATED, CampaignState.FINISHED)
                begun = election.beginning(session, term, basis, anew=ended)
            if begun is None or begun.is_new:
                leases.withdraw(session, self.campaign_id)
            store.set_trials_stale(session, self.campaign_id, upto=begun.trials if begun is not None else None)
            store.set_campaign(
                session,
                self.campaign_id,
                state=CampaignState.RUNNING,
                target=self._target.digest,
                budget=self._declared.budget.model_dump(exclude_none=True),
                started_at=self._started_at or _now(),
                finished_at=None,
            )
            return begun

        self._begun = self._transactions.write(write)

    def end(self, state: CampaignState, *, wall_s: float, measuring_s: float) -> None:
        """The campaign runs no more, and nobody waits for what was asked."""

        def write(session: Session) -> None:
            leases.withdraw(session, self.campaign_id)
            store.set_trials_stale(session, self.campaign_id)
            store.set_campaign(
                session,
                self.campaign_id,
                state=state,
                finished_at=_now() if state is CampaignState.FINISHED else None,
                wall_s=self._wall_s + wall_s,
                measuring_s=self._measuring_s + measuring_s,
            )

        self._transactions.write(write)

    def spend(self, *, wall_s: float, measuring_s: float) -> None:
        """How long this run has taken so far, and for how much of it the runner was busy, in seconds."""
        self._transactions.write(
            lambda session: store.set_campaign(
                session,
                self.campaign_id,
                wall_s=self._wall_s + wall_s,
                measuring_s=self._measuring_s + measuring_s,
            )
        )

    def trials(self, workload: Workload) -> list[TrialRow]:
        """What this campaign had taken up for the workload before it began on its way, the oldest first."""
        return [row for row in self._trials(workload) if self._begun is None or row.id <= self._begun.trials]

    def way(self, workload: Workload) -> list[TrialRow]:
        """What it has taken up since, in an earlier process, the oldest first."""
        return [row for row in self._trials(workload) if self._begun is not None and row.id > self._begun.trials]

    def jobs(self, workload: Workload) -> dict[tuple[Stage, int], tuple[int, JobState]]:
        """Id and state of the workload's jobs in the queue, by stage and number."""
        return self._transactions.read(
            lambda session: leases.jobs_of(session, self.campaign_id, self.workload_id(session, workload))
        )

    @property
    def goes_on(self) -> bool:
        """Whether an earlier process has gone a part of the way."""
        return self._begun is not None and not self._begun.is_new

    def known(self, workload: Workload) -> dict[str, Measurement]:
        """Every search measurement of the workload that was here at the beginning, by digest of its config, whichever
        campaign took it."""
        return self._transactions.read(
            lambda session: known_measurements(
                session,
                workload=workload.digest,
                target=self._target.digest,
                regime=self._regime,
                provenance=self._provenance,
                revision=self.revision(workload),
                upto=self._begun.measurements if self._begun is not None else None,
            )
        )

    def incumbents(self, workload: Workload) -> list[Config]:
        """The best known config of the workload on each target, of any provenance; the latest target first."""
        rows = self._transactions.read(
            lambda session: incumbents(
                session,
                workload=workload.digest,
                regime=self._regime,
                baselines=operator(workload.operator).baselines,
                upto=self._begun.measurements if self._begun is not None else None,
            )
        )
        return list(dict.fromkeys(Config.of(row.variant, row.params) for row in rows))

    def priors(self, workload: Workload) -> list[Config]:
        """What others found best of the workload: configs to try first, legal here or not."""
        return self._transactions.read(lambda session: prior_configs(session, workload))

    def reused(self, workload: Workload, space: Space, known: Iterable[tuple[Config, Measurement]]) -> None:
        """Measurements that were there already and that this campaign counts on."""
        rows = list(known)

        def write(session: Session) -> None:
            for config, measurement in rows:
                self.put_config(session, workload, config, space)
                row = store.add_measurement(session, measurement)
                store.add_trial(
                    session,
                    campaign_id=self.campaign_id,
                    workload=workload.digest,
                    config=config.digest,
                    number=0,
                    measurement_id=row,
                    reason=KNOWN,
                    reused=True,
                )

        self._transactions.write(write)

    def put_configs(self, workload: Workload, space: Space, configs: Iterable[Config]) -> None:
        """Configs whose measurements ``keep`` will be given."""
        named = list(configs)
        self._transactions.write(
            lambda session: [self.put_config(session, workload, config, space) for config in named]
        )

    def keep(self, measurement: Measurement, artifacts: Sequence[Artifact]) -> None:
        """A measurement that is no trial."""

        def write(session: Session) -> None:
            self.put_artifacts(session, artifacts)
            store.add_measurement(session, measurement)

        self._transactions.write(write)

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
        return self._transactions.read(lambda session: outcomes(session, self.campaign_id, baselines))

    def revision(self, workload: Workload) -> str | None:
        """Of the kernels; None where every revision counts."""
        return revision_of(operator(workload.operator)) if self._compiled else None

    def workload_id(self, session: Session, workload: Workload) -> int:
        """The id of a workload that was put; kept, because rows of workloads stay."""
        found = self._workloads.get(workload)
        if found is None:
            found = self._workloads[workload] = put_workload(session, workload)
        return found

    def put_config(self, session: Session, workload: Workload, config: Config, space: Space) -> int:
        """The id of the config's row."""
        # Remembering across a rollback could leave a config out; what is rolled back is written again, or ends it all.
        key = (workload.operator, config.digest)
        if key not in self._configs:
            variant = space.by_variant.get(config.variant)
            changes = any(parameter.changes_bits for parameter in variant.parameters) if variant is not None else None
            self._configs[key] = put_config(session, workload, config, changes_bits=changes)
        return self._configs[key]

    def put_artifacts(self, session: Session, artifacts: Sequence[Artifact]) -> None:
        """What is worth knowing of artifacts that are to be measured."""
        for artifact in artifacts:
            if artifact.key not in self._artifacts:
                put_artifact(session, artifact, self._target)
                self._artifacts.add(artifact.key)

    def forget(self) -> None:
        """A transaction was rolled back: what it put may not be there."""
        self._configs.clear()
        self._workloads.clear()
        self._artifacts.clear()

    def _trials(self, workload: Workload) -> list[TrialRow]:
        return self._transactions.read(lambda session: trials(session, self.campaign_id, workload=workload.digest))

    def _final_sessions(self, workload: Workload) -> list[list[FinalRow]]:
        sessions = self._transactions.read(
            lambda session: final_sessions(
                session,
                workload=workload.digest,
                target=self._target.digest,
                regime=self._regime,
                provenance=self._provenance,
            )
        )
        revision = self.revision(workload)
        if revision is None:
            return sessions
        # Baselines are of no revision.
        return [
            rows
            for rows in sessions
            if {row.measurement.revision for row in rows if row.measurement.artifact} == {revision}
        ]


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)
