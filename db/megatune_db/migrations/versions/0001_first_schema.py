"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every table of the first release."""
    op.create_table(
        "megatune_artifacts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("arch", sa.String(length=32), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=False),
        sa.Column("local_bytes", sa.Integer(), nullable=False),
        sa.Column("cubin_bytes", sa.Integer(), nullable=False),
        sa.Column("dsl", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_artifacts")),
        sa.UniqueConstraint("key", name=op.f("uq_megatune_artifacts_key")),
    )
    op.create_table(
        "megatune_configs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("operator", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("variant", sa.String(length=64), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("changes_bits", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_configs")),
        sa.UniqueConstraint("operator", "digest", name=op.f("uq_megatune_configs_operator_digest")),
    )
    op.create_table(
        "megatune_targets",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("toolchain", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_targets")),
        sa.UniqueConstraint("digest", name=op.f("uq_megatune_targets_digest")),
    )
    op.create_table(
        "megatune_workloads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("operator", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.String(length=256), nullable=False),
        sa.Column("dims", sa.JSON(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.String(length=32), nullable=False),
        sa.Column("world", sa.Integer(), nullable=False),
        sa.Column("routing", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_workloads")),
        sa.UniqueConstraint("digest", name=op.f("uq_megatune_workloads_digest")),
    )
    op.create_index(
        op.f("ix_megatune_workloads_operator_shape_tokens"),
        "megatune_workloads",
        ["operator", "shape", "tokens"],
        unique=False,
    )
    op.create_table(
        "megatune_campaigns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("file_text", sa.Text(), nullable=False),
        sa.Column("file_digest", sa.String(length=64), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("budget", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.Column("measuring_s", sa.Double(), nullable=False),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["megatune_targets.id"], name=op.f("fk_megatune_campaigns_target_id_megatune_targets")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_campaigns")),
        sa.UniqueConstraint("name", name=op.f("uq_megatune_campaigns_name")),
    )
    op.create_index(op.f("ix_megatune_campaigns_target_id"), "megatune_campaigns", ["target_id"], unique=False)
    op.create_table(
        "megatune_measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("regime", sa.String(length=32), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("provenance", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=128), nullable=False),
        sa.Column("measured_at", sa.DateTime(), nullable=False),
        sa.Column("median_us", sa.Double(), nullable=True),
        sa.Column("low_us", sa.Double(), nullable=True),
        sa.Column("high_us", sa.Double(), nullable=True),
        sa.Column("launches_a_sample", sa.Integer(), nullable=False),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("flush_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("compile_s", sa.Double(), nullable=False),
        sa.Column("measure_s", sa.Double(), nullable=False),
        sa.Column("artifact", sa.String(length=128), nullable=False),
        sa.Column("throttled", sa.LargeBinary(), nullable=True),
        sa.Column("samples", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["config_id"], ["megatune_configs.id"], name=op.f("fk_megatune_measurements_config_id_megatune_configs")
        ),
        sa.ForeignKeyConstraint(
            ["target_id"], ["megatune_targets.id"], name=op.f("fk_megatune_measurements_target_id_megatune_targets")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"],
            ["megatune_workloads.id"],
            name=op.f("fk_megatune_measurements_workload_id_megatune_workloads"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_measurements")),
    )
    op.create_index(
        "ix_megatune_measurements_planning",
        "megatune_measurements",
        [
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
        ],
        unique=False,
    )
    op.create_index(
        "uq_megatune_measurements_final",
        "megatune_measurements",
        ["workload_id", "target_id", "regime", "provenance", "config_id", "session"],
        unique=True,
        sqlite_where=sa.text("stage = 'final'"),
        postgresql_where=sa.text("stage = 'final'"),
    )
    op.create_index(
        "uq_megatune_measurements_search",
        "megatune_measurements",
        ["workload_id", "target_id", "regime", "provenance", "config_id"],
        unique=True,
        sqlite_where=sa.text("stage = 'search'"),
        postgresql_where=sa.text("stage = 'search'"),
    )
    op.create_table(
        "megatune_plans",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["target_id"], ["megatune_targets.id"], name=op.f("fk_megatune_plans_target_id_megatune_targets")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_plans")),
        sa.UniqueConstraint("digest", name=op.f("uq_megatune_plans_digest")),
    )
    op.create_index(op.f("ix_megatune_plans_name"), "megatune_plans", ["name"], unique=False)
    op.create_index(op.f("ix_megatune_plans_target_id"), "megatune_plans", ["target_id"], unique=False)
    op.create_table(
        "megatune_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("measurement_id", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=256), nullable=False),
        sa.Column("reused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["megatune_campaigns.id"], name=op.f("fk_megatune_trials_campaign_id_megatune_campaigns")
        ),
        sa.ForeignKeyConstraint(
            ["config_id"], ["megatune_configs.id"], name=op.f("fk_megatune_trials_config_id_megatune_configs")
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["megatune_measurements.id"],
            name=op.f("fk_megatune_trials_measurement_id_megatune_measurements"),
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["megatune_workloads.id"], name=op.f("fk_megatune_trials_workload_id_megatune_workloads")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_megatune_trials")),
        sa.UniqueConstraint(
            "campaign_id", "workload_id", "number", "config_id", "reason", name="uq_megatune_trials_once"
        ),
    )
    op.create_index(op.f("ix_megatune_trials_measurement_id"), "megatune_trials", ["measurement_id"], unique=False)
