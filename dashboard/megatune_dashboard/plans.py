"""The plan that all of a recording supports, for figures and pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path

from megatune_db.session import open_database
from megatune_planner.drafting import draft_plan
from megatune_planner.plan import Plan
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import Recording


def plan_of(recording: Recording, operator: str) -> Plan:
    """The plan of one operator that all measurements of a recording support."""
    with (
        tempfile.TemporaryDirectory(prefix="megatune-plan-") as folder,
        open_database(Path(folder) / "recording.db") as database,
        database.session() as session,
    ):
        import_recording(session, recording)
        session.flush()
        return draft_plan(session, name=recording.name, regime=recording.about.regime, only_operators=[operator])
