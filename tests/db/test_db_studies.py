from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import event
from sqlalchemy import text

from megatune_db import queries
from megatune_db import schema
from megatune_db import store
from megatune_db import studies
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import backend_at
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import OlderSchemaError
from megatune_db.session import Database
from megatune_db.session import open_database


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _tell(storage: optuna.storages.RDBStorage, value: float) -> optuna.Study:
    study = optuna.create_study(storage=storage, study_name="first", load_if_exists=True)
    trial = study.ask()
    trial.suggest_int("rows", 1, 8)
    study.tell(trial, value)
    return study


def test_studies_and_measurements_share_the_database(url: str) -> None:
    with open_database(url) as opened:
        for count in range(3):
            _tell(opened.optuna_storage(), float(count))
            with opened.session() as session:
                put_examples(session, tokens=3)
                store.add_measurement(session, measured(count, 0))
    with open_database(url) as opened:
        study = _tell(opened.optuna_storage(), 3.0)
        assert [trial.value for trial in study.trials] == [0.0, 1.0, 2.0, 3.0]
        with opened.session() as session:
            assert sum(queries.targets(session)[0].measurements.values()) == 3


def test_a_database_with_studies_alone_becomes_ours_and_keeps_them(empty_url: str) -> None:
    backend = backend_at(empty_url)
    backend.make()
    storage = studies.open_storage(backend)
    _tell(storage, 1.0)
    studies.close(storage)
    with open_database(empty_url) as opened:
        assert [trial.value for trial in _tell(opened.optuna_storage(), 2.0).trials] == [1.0, 2.0]
        with opened.session() as session:
            versions = {
                session.scalar(text("SELECT version_num FROM alembic_version")),
                session.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")),
            }
    assert schema.head() in versions
    assert len(versions) == 2


def _stamp(url: str, version: str) -> None:
    with open_database(url) as opened:
        storage = opened.optuna_storage()
        _tell(storage, 1.0)
        with storage.engine.begin() as raw:
            raw.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


def test_studies_of_an_older_optuna_are_upgraded_with_ours(empty_url: str, tmp_path: Path) -> None:
    _stamp(empty_url, "v3.0.0.d")
    with (
        open_database(empty_url) as opened,
        pytest.raises(OlderSchemaError, match=r"older Optuna: run `megatune db upgrade"),
    ):
        opened.optuna_storage()
    kept = tmp_path / "kept.db"
    assert schema.upgrade(empty_url, keep=kept) == schema.Upgraded(schema.head(), kept)
    assert kept.exists()
    with open_database(empty_url) as opened:
        assert [trial.value for trial in _tell(opened.optuna_storage(), 2.0).trials] == [1.0, 2.0]


def test_studies_of_a_newer_optuna_are_refused(empty_url: str) -> None:
    _stamp(empty_url, "v99.0.0.a")
    with open_database(empty_url) as opened, pytest.raises(NewerSchemaError, match="newer Optuna: upgrade Optuna"):
        opened.optuna_storage()
    with pytest.raises(NewerSchemaError, match="newer Optuna"):
        schema.upgrade(empty_url)


def test_a_full_disk_is_said_by_optuna_too(sqlite_database: Database) -> None:
    storage = sqlite_database.optuna_storage()
    study = _tell(storage, 1.0)
    limit = 1

    def _limit(raw: sqlite3.Connection, *_: object) -> None:
        raw.execute(f"PRAGMA max_page_count = {limit}")  # never less than the file has

    event.listen(storage.engine, "checkout", _limit)
    with pytest.raises(DatabaseFullError, match="no space is left"):
        study.set_user_attr("much", "x" * 2000 * 1000)
    limit = 1_000_000
    _tell(storage, 2.0)


def test_closing_twice_does_nothing(url: str) -> None:
    opened = open_database(url)
    opened.optuna_storage()
    opened.close()
    opened.close()
