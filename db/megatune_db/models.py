"""The tables, as typed SQLAlchemy models.

Every table is called ``megatune_…``: Optuna keeps its studies in the same file and has a table ``trials`` of its own.
Times are naive UTC (SQLite has no time zones, and a mixture would compare wrongly). Rows are linked by integer ids,
and digests are looked up once: a million measurements each holding three digests would double the file.
There are no relationships, because every join that is needed is a named query.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from datetime import datetime
from enum import StrEnum
from typing import Any
from typing import ClassVar

from sqlalchemy import JSON
from sqlalchemy import BigInteger
from sqlalchemy import Double
from sqlalchemy import Enum
from sqlalchemy import ForeignKey
from sqlalchemy import Index
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import String
from sqlalchemy import Text
from sqlalchemy import UniqueConstraint
from sqlalchemy import literal_column
from sqlalchemy import text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from megatune_db.records import CampaignAction
from megatune_db.records import CampaignState
from megatune_db.records import JobState
from megatune_db.records import PlanState
from megatune_db.records import Provenance
from megatune_db.records import ReviewAction
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState

PREFIX = "megatune_"
"""Of every table; what does not begin with it belongs to Optuna."""


def utc_now() -> datetime:
    """Now in UTC, without a time zone."""
    return datetime.now(UTC).replace(tzinfo=None)


def _values(kind: type[StrEnum]) -> Sequence[str]:
    return [member.value for member in kind]


def _word(kind: type[StrEnum]) -> Enum:
    # Kept as text without a check constraint: a new word would otherwise mean rebuilding the table.
    return Enum(kind, native_enum=False, create_constraint=False, length=32, values_callable=_values)


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can name it too."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double}


class Target(Base):
    """Hardware and toolchain that measurements hold for."""

    __tablename__ = "megatune_targets"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    hardware: Mapped[dict[str, Any]] = mapped_column(JSON)
    toolchain: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Workload(Base):
    """An operator at one shape and number of tokens."""

    __tablename__ = "megatune_workloads"
    __table_args__ = (Index(None, "operator", "shape", "tokens"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    operator: Mapped[str] = mapped_column(String(64))
    shape: Mapped[str] = mapped_column(String(256))
    dims: Mapped[dict[str, int]] = mapped_column(JSON)
    tokens: Mapped[int]
    dtype: Mapped[str] = mapped_column(String(32))
    world: Mapped[int]
    routing: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    facts: Mapped[dict[str, float] | None] = mapped_column(JSON(none_as_null=True))
    """What the operator says of it beside its key, e.g. how many experts its routing touches; None: not known."""


class Config(Base):
    """One point of an operator's space."""

    __tablename__ = "megatune_configs"
    # The digest of a config covers its variant and parameters alone, so two operators can share one.
    __table_args__ = (UniqueConstraint("operator", "digest"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    operator: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    variant: Mapped[str] = mapped_column(String(64))
    params: Mapped[dict[str, Any]] = mapped_column(JSON)
    changes_bits: Mapped[bool | None]
    """Whether its results can differ in their bits from those of the variant's other configs; None: not known."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Artifact(Base):
    """What is worth knowing of a compiled kernel without opening the artifact store."""

    __tablename__ = "megatune_artifacts"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(128), unique=True)
    arch: Mapped[str] = mapped_column(String(32))
    entry: Mapped[str] = mapped_column(Text)
    registers: Mapped[int]
    """Registers a thread."""
    local_bytes: Mapped[int]
    """Bytes a thread spills to local memory."""
    cubin_bytes: Mapped[int]
    dsl: Mapped[str] = mapped_column(String(64))
    """Version of the DSL that compiled it; empty when not known."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Campaign(Base):
    """A declared tuning run."""

    __tablename__ = "megatune_campaigns"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(256), unique=True)
    file_text: Mapped[str] = mapped_column(Text)
    file_digest: Mapped[str] = mapped_column(String(64))
    target_id: Mapped[int | None] = mapped_column(ForeignKey("megatune_targets.id"), index=True)
    state: Mapped[CampaignState] = mapped_column(_word(CampaignState))
    budget: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    measuring_s: Mapped[float]
    """Seconds for which the runner was busy."""
    wall_s: Mapped[float]
    """Seconds for which the campaign ran, over all its runs; ``measuring_s / wall_s`` is the GPU's share."""
    objective: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What its plans choose by over the routings of a shape; None: each routing has bands of its own."""


class Measurement(Base):
    """Samples of one (workload, config) on one target: ``records.Measurement`` as a row."""

    __tablename__ = "megatune_measurements"
    __table_args__ = (
        # One search row for each (workload, config, target, regime, provenance, revision): a config that is proposed
        # again, by this campaign or another, reuses what is there, and other kernels are measured anew. The order of
        # columns serves "all known of one workload".
        Index(
            "uq_megatune_measurements_search",
            "workload_id",
            "target_id",
            "regime",
            "provenance",
            "config_id",
            "revision",
            unique=True,
            sqlite_where=text("stage = 'search'"),
            postgresql_where=text("stage = 'search'"),
        ),
        # Finalists are measured again in each session; within one session each config has one row, which makes
        # pairing sample by sample well defined.
        Index(
            "uq_megatune_measurements_final",
            "workload_id",
            "target_id",
            "regime",
            "provenance",
            "config_id",
            "session",
            unique=True,
            sqlite_where=text("stage = 'final'"),
            postgresql_where=text("stage = 'final'"),
        ),
        # Holds every column that planning filters by and compares, so that reading a million rows touches this index
        # alone and never the rows with their samples.
        Index(
            "ix_megatune_measurements_planning",
            "target_id",
            "regime",
            "provenance",
            "status",
            "workload_id",
            "config_id",
            "stage",
            "median_us",
            "low_us",
            "high_us",
            "revision",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("megatune_workloads.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("megatune_configs.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("megatune_targets.id"))
    regime: Mapped[str] = mapped_column(String(32))
    stage: Mapped[Stage] = mapped_column(_word(Stage))
    status: Mapped[Status] = mapped_column(_word(Status))
    provenance: Mapped[Provenance] = mapped_column(_word(Provenance))
    session: Mapped[str] = mapped_column(String(128))
    measured_at: Mapped[datetime]
    median_us: Mapped[float | None]
    low_us: Mapped[float | None]
    high_us: Mapped[float | None]
    launches_a_sample: Mapped[int]
    sm_clock_mhz: Mapped[int | None]
    flush_bytes: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"))
    reason: Mapped[str] = mapped_column(Text)
    compile_s: Mapped[float]
    measure_s: Mapped[float]
    artifact: Mapped[str] = mapped_column(String(128))
    """Key of the artifact; not a foreign key, because an import can name artifacts that are not here."""
    revision: Mapped[str] = mapped_column(String(64), server_default="")
    """Digest of the source of the operator's kernels; empty for baselines, and where it is not known."""
    # The two blobs came last at first: SQLite reads a row up to the last column that is asked for. What was added
    # since lies behind them, and is best read from an index.
    throttled: Mapped[bytes | None]
    """One byte a sample, 0 or 1; None when no flags were given."""
    samples: Mapped[bytes | None]
    """Microseconds a launch as little-endian float32; None when the status is not ``ok``."""
    parts: Mapped[dict[str, float] | None] = mapped_column(JSON(none_as_null=True))
    """Of a chain, what else was measured in the same job: microseconds by name; None where there is nothing."""


IS_SEARCH = Measurement.stage == literal_column("'search'")
IS_FINAL = Measurement.stage == literal_column("'final'")
"""Written out and not bound: SQLite uses a partial index only where the statement itself says its condition."""


class Trial(Base):
    """A config that a campaign took up: why, and which measurement answered it."""

    __tablename__ = "megatune_trials"
    # A finalist can carry the number of the trial that found it, so the reason is part of what makes a trial one.
    __table_args__ = (
        UniqueConstraint("campaign_id", "workload_id", "number", "config_id", "reason", name="uq_megatune_trials_once"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"))
    workload_id: Mapped[int] = mapped_column(ForeignKey("megatune_workloads.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("megatune_configs.id"))
    number: Mapped[int]
    state: Mapped[TrialState] = mapped_column(_word(TrialState))
    measurement_id: Mapped[int | None] = mapped_column(ForeignKey("megatune_measurements.id"), index=True)
    reason: Mapped[str] = mapped_column(String(256))
    """Who proposed it: ``sampler``, ``enqueued: neighbour``, ``finalist``, …"""
    reused: Mapped[bool]
    """Whether the measurement was there already."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Plan(Base):
    """A plan: its canonical JSON, and how far it has come. Triggers keep all but the state from being changed."""

    __tablename__ = "megatune_plans"
    __table_args__ = (
        # One plan serves a target, model and worlds, whatever two reviewers do at once.
        Index(
            "uq_megatune_plans_in_service",
            "target_id",
            "model",
            "worlds",
            unique=True,
            sqlite_where=text("state = 'exported'"),
            postgresql_where=text("state = 'exported'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(256), index=True)
    content: Mapped[str] = mapped_column(Text)
    state: Mapped[PlanState] = mapped_column(_word(PlanState))
    target_id: Mapped[int] = mapped_column(ForeignKey("megatune_targets.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    model: Mapped[str] = mapped_column(String(256), server_default="")
    """Name of the model that it serves; of a plan for every model, the plan's own name."""
    worlds: Mapped[str] = mapped_column(String(64), server_default="")
    """Numbers of ranks that it serves, ascending, separated by commas; empty for any."""


IS_IN_SERVICE = Plan.state == literal_column("'exported'")
"""Written out for the same reason as ``IS_SEARCH``."""


class Review(Base):
    """An entry of the audit log: one action on one plan. Triggers keep it from being changed and deleted."""

    __tablename__ = "megatune_reviews"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("megatune_plans.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str] = mapped_column(String(256))
    action: Mapped[ReviewAction] = mapped_column(_word(ReviewAction))
    comment: Mapped[str] = mapped_column(Text)
    before: Mapped[PlanState] = mapped_column(_word(PlanState))
    after: Mapped[PlanState] = mapped_column(_word(PlanState))
    """States of the plan."""
    other_id: Mapped[int | None] = mapped_column(ForeignKey("megatune_plans.id"), index=True)
    """The plan that it gave its place to, or took it from."""


class Export(Base):
    """Files that were made of a plan. Triggers keep it from being changed and deleted."""

    __tablename__ = "megatune_exports"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("megatune_plans.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str] = mapped_column(String(256))
    exporter: Mapped[str] = mapped_column(String(128))
    runtime: Mapped[str] = mapped_column(String(128))
    """Distribution that reads the files; empty for a format of our own."""
    runtime_version: Mapped[str] = mapped_column(String(64))
    """Whose format they have; empty for a format of our own."""
    files: Mapped[dict[str, str]] = mapped_column(JSON)
    """SHA-256 of each, hexadecimal, by path."""
    digest: Mapped[str] = mapped_column(String(64))
    """Of ``files``."""
    state: Mapped[PlanState] = mapped_column(_word(PlanState))
    """Of the plan when it was exported: ``draft`` when nobody had reviewed it."""


class Verification(Base):
    """A plan that was measured again on its target. Triggers keep it from being changed and deleted."""

    __tablename__ = "megatune_verifications"

    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("megatune_plans.id"), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("megatune_targets.id"))
    """What it was verified on: the plan's hardware, with the toolchain of that day."""
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str] = mapped_column(String(256))
    provenance: Mapped[Provenance] = mapped_column(_word(Provenance))
    verdict: Mapped[str] = mapped_column(String(32))
    """``holds``, ``drifted`` or ``cannot tell``."""
    reason: Mapped[str] = mapped_column(Text)
    document: Mapped[str] = mapped_column(Text)
    """JSON of all that was compared."""


class Repeat(Base):
    """A campaign that was run again with other seeds. Triggers keep it from being changed and deleted."""

    __tablename__ = "megatune_repeats"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("megatune_targets.id"), index=True)
    regime: Mapped[str] = mapped_column(String(32))
    provenance: Mapped[Provenance] = mapped_column(_word(Provenance))
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str] = mapped_column(String(256))
    repeats: Mapped[int]
    flip_rate: Mapped[float]
    """Share of the decisions that other seeds took otherwise."""
    regret: Mapped[float]
    """Share of the time that its plan loses against the best of all runs."""
    document: Mapped[str] = mapped_column(Text)
    """JSON of every flip."""


class Coordinator(Base):
    """Which process runs a campaign, and where its way began. Times are the database's clock, in Unix time."""

    __tablename__ = "megatune_coordinators"

    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"), primary_key=True, autoincrement=False)
    holder: Mapped[str] = mapped_column(String(512))
    """The process, as ``place.here`` says it; empty when it gave up its place."""
    epoch: Mapped[int]
    """Goes up with every holder: what a holder of an earlier epoch writes is refused."""
    expires_at: Mapped[float]
    basis: Mapped[str] = mapped_column(String(64))
    """Digest of what decides the way that the campaign takes; another basis begins anew."""
    measurements_before: Mapped[int]
    trials_before: Mapped[int]
    """The greatest ids when the campaign began on this basis: what is older is known to it from the beginning."""


class Worker(Base):
    """A process that measures for campaigns. Its times are the database's clock, in seconds of Unix time."""

    __tablename__ = "megatune_workers"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"), index=True)
    place: Mapped[str] = mapped_column(String(512))
    """The process, as ``place.here`` says it."""
    target_id: Mapped[int] = mapped_column(ForeignKey("megatune_targets.id"))
    provenance: Mapped[Provenance] = mapped_column(_word(Provenance))
    needs_artifacts: Mapped[bool]
    started_at: Mapped[float]
    seen_at: Mapped[float]
    ended: Mapped[str] = mapped_column(Text)
    """Why it ended; empty while it has not said so."""


class Job(Base):
    """What is to be measured for a campaign, leased to one worker at a time. Times are the database's clock."""

    __tablename__ = "megatune_jobs"
    __table_args__ = (
        UniqueConstraint("campaign_id", "workload_id", "stage", "number", name="uq_megatune_jobs_once"),
        Index(None, "campaign_id", "state", "id"),
        Index(
            "ix_megatune_jobs_failures",
            "campaign_id",
            sqlite_where=text("failures > 0"),
            postgresql_where=text("failures > 0"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"))
    workload_id: Mapped[int] = mapped_column(ForeignKey("megatune_workloads.id"))
    stage: Mapped[Stage] = mapped_column(_word(Stage))
    number: Mapped[int]
    """Of the trial; of finalists, that of the last trial that they decide about."""
    state: Mapped[JobState] = mapped_column(_word(JobState))
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Regime, reason, and the configs with their artifacts: ``leases.Content``."""
    attempt: Mapped[int]
    """How often it was leased; names the lease."""
    failures: Mapped[int]
    """Leases that gave no measurement."""
    strikes: Mapped[int]
    """Leases in which its config brought down what measures it."""
    evidence: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Of each failure attempt, worker and reason: ``leases.Failure``."""
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("megatune_workers.id"))
    expires_at: Mapped[float | None]
    measurement_id: Mapped[int | None] = mapped_column(ForeignKey("megatune_measurements.id"))
    """What answered it; of finalists, the first."""
    ignored: Mapped[int]
    """Results that came after it was answered."""


HAS_FAILED = Job.failures > literal_column("0")
"""Written out for the same reason as ``IS_SEARCH``."""


class Prior(Base):
    """An entry of another project's table or cache: a config to try first, and no measurement."""

    __tablename__ = "megatune_priors"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    """Of format, source, place, tokens and entry."""
    format: Mapped[str] = mapped_column(String(64), index=True)
    """As ``megatune import --format`` names it."""
    source: Mapped[str] = mapped_column(String(512))
    """The file's name."""
    place: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What the file says that it is for: shape, dtype, device."""
    tokens: Mapped[int | None]
    """Where the file says for how many it is."""
    entry: Mapped[Any] = mapped_column(JSON)
    """What was found best, as the file has it."""
    reason: Mapped[str] = mapped_column(Text)
    """Why no operator made a config of it when it was imported; empty where one may."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class CampaignEntry(Base):
    """An entry of the audit log: one action on one campaign. Triggers keep it from being changed and deleted."""

    __tablename__ = "megatune_campaign_log"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("megatune_campaigns.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    who: Mapped[str] = mapped_column(String(256))
    action: Mapped[CampaignAction] = mapped_column(_word(CampaignAction))
    comment: Mapped[str] = mapped_column(Text)
