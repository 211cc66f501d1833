"""Optuna's studies, rebuilt from the database's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from campaigns import ToyRunner
from campaigns import campaign
from campaigns import trials
from optuna.trial import TrialState
from toy import Toy
from toy_recordings import workloads

from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.target import architecture
from megatune_tuner.campaign import run_campaign
from megatune_tuner.runners.base import Request
from megatune_tuner.studies import study_name
from megatune_tuner.studies import write_studies

CELLS = workloads(shapes=[(1536, 7168)], tokens=(1, 32))
SPACES = {cell: Toy().space(cell, architecture("sm_90a")) for cell in CELLS}


def outcome(request: Request) -> Status:
    return Status.CRASH if request.config.params.get("tile") == 64 else Status.OK


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "toy.db") as opened:
        yield opened


def check(database: Database) -> None:
    """Every study says what the rows say."""
    storage = database.optuna_storage()
    for cell in CELLS:
        study = optuna.load_study(study_name=study_name("toy", cell), storage=storage)
        rows = [
            row
            for row in trials(database)
            if row.workload == cell.digest and row.stage is Stage.SEARCH and row.variant != "stock"
        ]
        assert len(study.trials) == len(rows)
        for trial, row in zip(study.trials, rows, strict=True):
            params = {"variant": row.variant, **{f"{row.variant}.{name}": value for name, value in row.params.items()}}
            assert trial.params == params
            assert trial.value == row.median_us
            assert trial.state is (TrialState.COMPLETE if row.status is Status.OK else TrialState.FAIL)
            assert trial.user_attrs == ({} if row.status is Status.OK else {"status": "crash"})
        assert study.best_value == min(row.median_us for row in rows if row.median_us is not None)


def test_a_campaign_writes_its_studies_beside_its_rows(database: Database) -> None:
    declared = campaign(tokens=(1, 32), studies=True)
    run_campaign(declared, ToyRunner(outcome), database)
    check(database)
    names = {study.study_name for study in database.optuna_storage().get_all_studies()}
    assert names == {"toy/toy k=7168,n=1536 tokens=1", "toy/toy k=7168,n=1536 tokens=32"}
    # The database still opens: the two version tables do not get in each other's way.
    with open_database(database.location) as again:
        assert trials(again) == trials(database)


def test_every_cell_has_a_study_of_its_own() -> None:
    cell = CELLS[0]
    others = [replace(cell, dtype="fp8"), replace(cell, world=2), cell.at(2)]
    others += [replace(cell, routing=routing) for routing in ("balanced", "same")]
    assert len({study_name("toy", each) for each in (cell, *others)}) == 6


def test_studies_are_rebuilt_from_rows_alone(database: Database) -> None:
    declared = campaign(tokens=(1, 32), studies=False)
    run_campaign(declared, ToyRunner(outcome), database)
    assert database.optuna_storage().get_all_studies() == []
    assert write_studies(database, "toy", SPACES) == 2
    check(database)


def test_writing_again_replaces(database: Database) -> None:
    run_campaign(campaign(tokens=(1, 32), studies=True), ToyRunner(outcome), database)
    more = campaign(tokens=(1, 32), budget="trials = 20", studies=True)
    run_campaign(more, ToyRunner(outcome), database)
    check(database)
    assert len(database.optuna_storage().get_all_studies()) == 2


def test_a_replay_leaves_studies_out_unless_asked(database: Database) -> None:
    assert campaign(studies=None).writes_studies
    assert not campaign(recording=Path("x.parquet"), studies=None).writes_studies
    assert campaign(recording=Path("x.parquet"), studies=True).writes_studies
    assert write_studies(database, "unknown", SPACES) == 0
