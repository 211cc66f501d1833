"""Recordings of made-up measurements."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill

from megatune_db import queries
from megatune_db.session import open_database
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording


def recorded(
    directory: Path, cases: Sequence[Case], *, facts: Mapping[str, float] | None = None, gpu: str | None = None
) -> Path:
    """
    :param facts: what the recording says of itself.
    :param gpu: another name of the GPU.
    """
    path = directory / "made-up.parquet"
    target = TARGET if gpu is None else replace(TARGET, hardware=replace(TARGET.hardware, gpu=gpu))
    about = About(target, REGIME, version="0", campaign="", sampling="made up", facts=dict(facts or {}))
    with open_database(directory / "made-up.db") as database, database.session() as session:
        fill(session, cases, target)
        session.flush()
        write_recording(path, queries.export_rows(session, target=target.digest, regime=REGIME), about)
    return path
