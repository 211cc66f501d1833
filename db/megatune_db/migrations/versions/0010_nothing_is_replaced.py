"""What was recorded is not changed in any column, not with what it is of, and not by replacing it."""

from __future__ import annotations

from megatune_db.migrations.triggers import refuse_replacing
from megatune_db.migrations.triggers import refuse_updating

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

MEASUREMENTS = "megatune_measurements"
PLANS = "megatune_plans"
LOGS = (
    "megatune_reviews",
    "megatune_exports",
    "megatune_verifications",
    "megatune_repeats",
    "megatune_campaign_log",
)
OF = {
    "megatune_targets": ("id", "digest", "hardware", "toolchain"),
    "megatune_workloads": ("id", "digest", "operator", "shape", "dims", "tokens", "dtype", "world", "routing"),
    "megatune_configs": ("id", "digest", "operator", "variant", "params"),
}
_PLACE = ("workload_id", "target_id", "regime", "provenance", "config_id")


def upgrade() -> None:
    """Triggers; nothing that is there changes."""
    refuse_updating(MEASUREMENTS, "a measurement is never changed: measure again", name="update_row")
    refuse_updating(PLANS, "a plan is never changed: make another", ("id",), name="update_id")
    for table, columns in OF.items():
        refuse_updating(table, "what was measured is never changed", columns)
    refuse_replacing(
        MEASUREMENTS,
        ((*_PLACE, "revision"), "stage = 'search'"),
        ((*_PLACE, "session"), "stage = 'final'"),
    )
    refuse_replacing(PLANS, (("digest",), ""), (("target_id", "model", "worlds"), "state = 'exported'"))
    for table in LOGS:
        refuse_replacing(table)
