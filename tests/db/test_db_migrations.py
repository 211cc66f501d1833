from __future__ import annotations

import multiprocessing
import re
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from db_examples import measured
from db_examples import put_examples
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import IntegrityError

from megatune_db import backup
from megatune_db import connection
from megatune_db import models
from megatune_db import queries
from megatune_db import schema
from megatune_db import store
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import backend_at
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import OlderSchemaError
from megatune_db.location import locate
from megatune_db.postgres import PostgresBackend
from megatune_db.records import CampaignState
from megatune_db.records import PlanState
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import ReviewAction
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database

ASSETS = Path(__file__).parent / "upgrade_assets"
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{before}"


def upgrade() -> None:
    with op.batch_alter_table("megatune_targets") as batch:
        batch.add_column(sa.Column("place", sa.String(), nullable=True))
    {last}
"""


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes this program one that has another revision; returns its file."""
    before = schema.head()
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    file = folder / "versions" / "9000_next.py"
    file.write_text(NEXT.format(before=before, last="pass"))
    return file


@pytest.fixture
def older(empty_url: str, request: pytest.FixtureRequest) -> str:
    """A database with a measurement, of the release before the next one."""
    with open_database(empty_url) as opened, opened.session() as session:
        put_examples(session)
        store.add_measurement(session, measured(0, 0))
    request.getfixturevalue("next_release")
    return empty_url


def _revision(where: str | Path) -> str | None:
    return schema.revision(backend_at(where))


def _ask(where: str | Path, sql: str) -> list[tuple[Any, ...]]:
    """What a statement answers, whatever the revision of the schema is."""
    engine = backend_at(where).engine(pooled=False)
    with engine.begin() as opened:
        rows = [tuple(row) for row in opened.exec_driver_sql(sql)]
    engine.dispose()
    return rows


def test_models_and_migrations_agree(database: Database) -> None:
    database.optuna_storage()
    with database.engine.connect() as opened:
        options = {"version_table": VERSION_TABLE, "include_name": schema.is_ours, "compare_type": True}
        context = MigrationContext.configure(opened, opts=options)
        assert compare_metadata(context, models.Base.metadata) == []


def test_partial_indexes_are_as_the_models_say(database: Database) -> None:
    # Comparing metadata does not look at the condition of an index.
    made = [index for table in models.Base.metadata.tables.values() for index in table.indexes]
    dialect = database.engine.dialect.name
    text = "sql FROM sqlite_master WHERE name" if dialect == "sqlite" else "indexdef FROM pg_indexes WHERE indexname"
    with database.engine.connect() as opened:
        for index in made:
            (sql,) = opened.exec_driver_sql(f"SELECT {text} = '{index.name}'").scalars()
            condition = index.dialect_options[dialect]["where"]
            found = re.sub(r"[()]|::(text|character varying)", "", sql.partition(" WHERE ")[2])
            assert found == ("" if condition is None else str(condition))


def test_every_table_carries_the_prefix() -> None:
    assert all(name.startswith(models.PREFIX) for name in models.Base.metadata.tables)


def test_an_older_schema_is_refused_until_it_is_upgraded(older: str, tmp_path: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(OlderSchemaError, match=re.escape(f"run `megatune db upgrade --db {locate(older)}`")):
            open_database(older, read_only=read_only)
    kept = tmp_path / "kept.db"
    assert schema.upgrade(older, kept) == schema.Upgraded("9000", kept)
    with open_database(older) as opened, opened.session() as session:
        assert len(queries.targets(session)) == 1
        assert queries.samples(session, [1])[1].tolist() == [10.0, 10.0]
        # Ids go on where they were.
        assert store.add_measurement(session, measured(0, 1)) == 2
    assert _ask(older, "SELECT place FROM megatune_targets") == [(None,)]
    if locate(older).is_file:
        assert _ask(older, "PRAGMA foreign_key_check") == []
        assert schema.upgrade(f"sqlite:///{older}") == schema.Upgraded("9000", None)


def test_an_upgrade_keeps_a_copy_of_what_was_there(older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = _revision(older)
    first = locate(older).folder / f"{locate(older).name}.{before}.backup"
    first.write_text("of an earlier day")
    done = schema.upgrade(older)
    assert done.backup == first.with_name(f"{locate(older).name}.{before}-2.backup")
    assert _revision(done.backup) == before
    assert _ask(done.backup, "SELECT count(*) FROM megatune_measurements") == [(1,)]
    assert first.read_text() == "of an earlier day"


def test_an_upgrade_happens_whole_or_not_at_all(older: str, next_release: Path, tmp_path: Path) -> None:
    before = _revision(older)
    text = next_release.read_text()
    next_release.write_text(text.replace("    pass", "    raise RuntimeError('half way')"))
    with pytest.raises(RuntimeError, match="half way"):
        schema.upgrade(older, tmp_path / "first.db")
    assert _revision(older) == before
    with pytest.raises(DBAPIError):
        _ask(older, "SELECT place FROM megatune_targets")
    next_release.write_text(text)
    assert schema.upgrade(older, tmp_path / "second.db").revision == "9000"


def test_no_upgrade_while_a_campaign_runs(older: str, tmp_path: Path) -> None:
    with backend_at(older).writer_lock(), pytest.raises(DatabaseLockedError, match="running a campaign"):
        schema.upgrade(older, tmp_path / "kept.db")
    assert not (tmp_path / "kept.db").exists()


def test_a_copy_that_does_not_fit_stops_the_upgrade(
    path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = path
    open_database(path).close()
    request.getfixturevalue("next_release")
    before = _revision(older)
    genuine = connection.connect

    class Source(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **_: object) -> None:
            target.execute("PRAGMA max_page_count = 2")
            for number in range(9):
                target.execute(f"CREATE TABLE t{number} (x)")

    def connect(path: Path, mode: connection.Mode = connection.Mode.WRITE, **options: bool) -> sqlite3.Connection:
        return sqlite3.connect(path, factory=Source) if mode is connection.Mode.READ else genuine(path, mode, **options)

    monkeypatch.setattr(connection, "connect", connect)
    with pytest.raises(DatabaseFullError, match="no space is left"):
        schema.upgrade(older)
    assert list(older.parent.glob("*.backup")) == []
    assert _revision(older) == before


def _open_and_put(where: str, barrier: object, number: int) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    with open_database(where) as opened, opened.session() as session:
        store.put_target(session, digest=f"t{number}", hardware={}, toolchain={})


def test_several_processes_can_make_the_same_database(empty_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_open_and_put, args=(empty_url, barrier, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with open_database(empty_url, read_only=True) as opened, opened.session() as session:
        assert len(queries.targets(session)) == 3


def _restore(where: str, asset: Path) -> None:
    """Make a database of what an earlier program wrote."""
    if locate(where).is_file:
        with closing(sqlite3.connect(where)) as raw:
            raw.executescript(asset.read_text())
        return
    with closing(PostgresBackend(locate(where)).connect(autocommit=True)) as raw:
        raw.execute((asset.parent / "postgres" / asset.name).read_bytes())


@pytest.mark.parametrize("asset", sorted(ASSETS.glob("*.sql")), ids=lambda asset: asset.stem)
def test_databases_of_every_release_can_be_upgraded(empty_url: str, asset: Path, tmp_path: Path) -> None:
    _restore(empty_url, asset)
    assert _revision(empty_url) == asset.stem
    kept = tmp_path / "kept.db"
    assert schema.upgrade(empty_url, kept) == schema.Upgraded(
        schema.head(), None if asset.stem == schema.head() else kept
    )
    _check_asset(empty_url, asset.stem)
    if kept.exists() and not locate(empty_url).is_file:
        # The copy is a database of the release before, and comes to the same.
        assert _revision(kept) == asset.stem
        schema.upgrade(kept)
        _check_asset(str(kept), asset.stem)


def _check_asset(where: str, written_at: str) -> None:
    with open_database(where) as opened, opened.session() as session:
        (target,) = queries.targets(session)
        assert target.measurements == {Provenance.MEASURED: 4}
        known = queries.known_measurements(
            session, workload="projection-1", target=target.digest, regime=Regime(), provenance=Provenance.MEASURED
        )
        assert {config: found.status for config, found in known.items()} == {
            "config-0": Status.OK,
            "config-1": Status.HANG,
        }
        assert known["config-0"].samples_us == (9.5, 10.5)
        assert known["config-0"].throttled == (False, True)
        assert known["config-0"].revision == ("" if written_at == "0001" else "r1")
        assert known["config-0"].measured_at == datetime(2026, 8, 1, 12)
        (campaign,) = queries.campaigns(session)
        assert campaign.state is CampaignState.FINISHED
        assert campaign.statuses == {Status.OK: 3, Status.HANG: 1}
        plan = queries.plan(session, "first")
        assert plan is not None
        assert plan.state is PlanState.APPROVED
        assert plan.model == "first"
        log = [(row.action, row.comment) for row in queries.reviews(session, plan.digest)]
        kept = [(ReviewAction.APPROVE, "as measured"), (ReviewAction.EXPORT, "unreviewed")]
        assert log == ([] if written_at < "0003" else kept)
        assert len(queries.plan_exports(session)) == (written_at >= "0003")
        parts = [row.parts_us for row in queries.measurements(session, range(1, 5)).values() if row.parts_us]
        assert parts == ([] if written_at < "0004" else [(("idle", 5.25),)])
        assert len(queries.verifications(session)) == len(queries.repeats(session)) == (written_at >= "0007")
        assert len(queries.priors(session)) == (written_at >= "0008")
        assert len(queries.campaign_log(session)) == (written_at >= "0009")


def test_an_upgrade_leaves_one_plan_in_service(empty_url: str, tmp_path: Path) -> None:
    _restore(empty_url, ASSETS / "0002.sql")
    for number, (name, state) in enumerate([("a", "exported"), ("b", "exported"), ("a", "exported"), ("a", "draft")]):
        engine = backend_at(empty_url).engine(pooled=False)
        with engine.begin() as opened:
            opened.exec_driver_sql(
                "INSERT INTO megatune_plans (digest, name, content, state, target_id, created_at) "
                f"VALUES ('p{number}', '{name}', '{{}}', '{state}', 1, '2026-08-01 12:00:00.000000')"
            )
    schema.upgrade(empty_url, tmp_path / "kept.db")
    with open_database(empty_url) as opened, opened.session() as session:
        states = {row.digest: row.state.value for row in queries.plan_summaries(session)}
        assert states == {"plan": "approved", "p0": "retired", "p1": "exported", "p2": "exported", "p3": "draft"}
        (entry,) = queries.reviews(session)
        assert abs(entry.at - models.utc_now()) < timedelta(minutes=10), "in UTC"
        assert (entry.plan, entry.other, entry.who) == ("p0", "p2", "megatune db upgrade")
        assert (entry.action, entry.before, entry.after) == ("retire", "exported", "retired")
        assert [row.digest for row in queries.earlier_plans(session, "p2")] == []
        replaced = queries.replaced_plan(session, "p2")
        assert replaced is not None
        assert replaced.digest == "p0"


def test_a_copy_that_was_interrupted_is_made_again_and_nothing_is_copied_twice(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.db"
    with open_database(source) as opened, opened.session() as session:
        put_examples(session)
        store.add_measurement(session, measured(0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(backup, "_copy_table", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backup.copy(source, empty_url)
    assert backup.copy(source, empty_url).rows == 11
    with pytest.raises(DatabaseError, match="is in use already: copy into a new database"):
        backup.copy(source, empty_url)


def test_every_revision_has_its_assets() -> None:
    script = {revision.revision for revision in schema._script().walk_revisions()}
    assert {asset.stem for asset in ASSETS.glob("*.sql")} == script
    assert {asset.stem for asset in (ASSETS / "postgres").glob("*.sql")} == script


def test_a_revision_of_no_release_is_newer(path: Path) -> None:
    with pytest.raises(NewerSchemaError):
        schema.check(backend_at(path), "0000")


def test_what_was_recorded_cannot_be_taken_away(empty_url: str) -> None:
    _restore(empty_url, ASSETS / f"{schema.head()}.sql")
    statements = [
        *(f"DELETE FROM megatune_{table}" for table in ("measurements", "plans", "reviews", "exports")),
        *(f"UPDATE megatune_{table} SET who = 'x'" for table in ("reviews", "exports", "verifications", "repeats")),
        "UPDATE megatune_measurements SET samples = NULL",
        "UPDATE megatune_measurements SET parts = NULL",
        "UPDATE megatune_plans SET content = ''",
        *(
            f"UPDATE megatune_measurements SET {column} = NULL"
            for column in ("status", "low_us", "session", "artifact")
        ),
        *(f"UPDATE megatune_{table} SET id = id + 100" for table in ("measurements", "plans")),
        *(f"UPDATE megatune_{table} SET digest = 'x'" for table in ("targets", "workloads", "configs")),
    ]
    if locate(empty_url).is_file:
        logs = ("reviews", "exports", "verifications", "repeats", "campaign_log")
        statements += [f"INSERT OR REPLACE INTO megatune_{table} SELECT * FROM megatune_{table}" for table in logs]
        statements.append("UPDATE OR REPLACE megatune_plans SET state = 'exported', id = id + 1")
    else:
        statements.append("TRUNCATE megatune_measurements CASCADE")
    for statement in statements:
        with pytest.raises(
            IntegrityError, match=r"megatune_\w+: (nothing that was|what was|an entry|a plan|a measure)"
        ):
            _ask(empty_url, statement)
    # What moves on does.
    engine = backend_at(empty_url).engine(pooled=False)
    with engine.begin() as opened:
        opened.exec_driver_sql("UPDATE megatune_plans SET state = 'retired'")
        opened.exec_driver_sql("UPDATE megatune_configs SET changes_bits = NULL")
    if locate(empty_url).is_file:
        # What is unique stays as it is, and who puts it in again is not told of it.
        tables = ("measurements", "plans")
        before = [_ask(empty_url, f"SELECT * FROM megatune_{table}") for table in tables]
        with engine.begin() as opened:
            for table in tables:
                columns = ", ".join(
                    column.name
                    for column in models.Base.metadata.tables[f"megatune_{table}"].columns
                    if column.name != "id"
                )
                opened.exec_driver_sql(f"INSERT OR REPLACE INTO megatune_{table} SELECT * FROM megatune_{table}")
                opened.exec_driver_sql(
                    f"INSERT OR REPLACE INTO megatune_{table} ({columns}) SELECT {columns} FROM megatune_{table}"
                )
        assert [_ask(empty_url, f"SELECT * FROM megatune_{table}") for table in tables] == before
