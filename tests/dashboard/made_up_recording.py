"""Recordings of made-up measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill

from megatune_db import queries
from megatune_db.session import open_database
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording


def recorded(directory: Path, cases: Sequence[Case]) -> Path:
    path = directory / "made-up.parquet"
    about = About(TARGET, REGIME, version="0", campaign="", sampling="made up")
    with open_database(directory / "made-up.db") as database, database.session() as session:
        fill(session, cases)
        session.flush()
        write_recording(path, queries.export_rows(session, target=TARGET.digest, regime=REGIME), about)
    return path
