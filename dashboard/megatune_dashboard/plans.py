"""The plan and the curves that all of a recording supports, for figures and pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db import queries
from megatune_db.session import open_database
from megatune_planner.depths import OPERATOR as PREFETCH
from megatune_planner.depths import DepthCurve
from megatune_planner.depths import depth_curves
from megatune_planner.drafting import draft_plan
from megatune_planner.plan import Plan
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import Recording


def plan_of(recording: Recording, operator: str) -> Plan:
    """The plan of one operator that all measurements of a recording support."""
    with _imported(recording) as session:
        return draft_plan(session, name=recording.name, regime=recording.about.regime, only_operators=[operator])


def depth_curves_of(recording: Recording) -> dict[str, tuple[DepthCurve, ...]]:
    """By shape, the depth curves of every chain of a recording, ascending in tokens."""
    with _imported(recording) as session:
        rows = [row for row in queries.measured_shapes(session) if row.operator == PREFETCH]
        return {row.shape: depth_curves(session, row) for row in rows}


@contextmanager
def _imported(recording: Recording) -> Iterator[Session]:
    """A database of the recording alone."""
    with (
        tempfile.TemporaryDirectory(prefix="megatune-plan-") as folder,
        open_database(Path(folder) / "recording.db") as database,
        database.session() as session,
    ):
        import_recording(session, recording)
        session.flush()
        yield session
