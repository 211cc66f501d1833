from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from db_examples import measured
from db_examples import put_examples

from megatune_db import connection
from megatune_db import models
from megatune_db import queries
from megatune_db import schema
from megatune_db import store
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import OlderSchemaError
from megatune_db.lock import writer_lock
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
def older(path: Path, request: pytest.FixtureRequest) -> Path:
    """A database with a measurement, of the release before the next one."""
    with open_database(path) as opened, opened.session() as session:
        put_examples(session)
        store.add_measurement(session, measured(0, 0))
    request.getfixturevalue("next_release")
    return path


def test_models_and_migrations_agree(database: Database) -> None:
    database.optuna_storage()
    with database.engine.connect() as opened:
        options = {"version_table": schema.VERSION_TABLE, "include_name": schema.is_ours, "compare_type": True}
        context = MigrationContext.configure(opened, opts=options)
        assert compare_metadata(context, models.Base.metadata) == []


def test_partial_indexes_are_as_the_models_say(database: Database) -> None:
    # Comparing metadata does not look at the condition of an index.
    made = models.Base.metadata.tables["megatune_measurements"].indexes
    with database.engine.connect() as opened:
        for index in made:
            sql = opened.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = ?", (index.name,)).scalar()
            condition = index.dialect_options["sqlite"]["where"]
            assert sql is not None
            assert sql.partition(" WHERE ")[2] == ("" if condition is None else str(condition))


def test_every_table_carries_the_prefix() -> None:
    assert all(name.startswith(models.PREFIX) for name in models.Base.metadata.tables)


def test_an_older_schema_is_refused_until_it_is_upgraded(older: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(OlderSchemaError, match=f"run `megatune db upgrade --db {older}`"):
            open_database(older, read_only=read_only)
    assert schema.upgrade(older) == "9000"
    with open_database(older) as opened, opened.session() as session:
        assert len(queries.targets(session)) == 1
        assert queries.samples(session, [1])[1].tolist() == [10.0, 10.0]
    with closing(sqlite3.connect(older)) as raw:
        assert raw.execute("SELECT place FROM megatune_targets").fetchall() == [(None,)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    assert schema.upgrade(f"sqlite:///{older}") == "9000"


def test_an_upgrade_keeps_a_copy_of_what_was_there(older: Path) -> None:
    before = schema.revision(older)
    Path(f"{older}.{before}.backup").write_text("of an earlier day")
    schema.upgrade(older)
    copy = Path(f"{older}.{before}-2.backup")
    assert schema.revision(copy) == before
    with closing(sqlite3.connect(copy)) as opened:
        assert opened.execute("SELECT count(*) FROM megatune_measurements").fetchone() == (1,)
    assert Path(f"{older}.{before}.backup").read_text() == "of an earlier day"


def test_an_upgrade_happens_whole_or_not_at_all(older: Path, next_release: Path) -> None:
    before = schema.revision(older)
    text = next_release.read_text()
    next_release.write_text(text.replace("    pass", "    raise RuntimeError('half way')"))
    with pytest.raises(RuntimeError, match="half way"):
        schema.upgrade(older)
    assert schema.revision(older) == before
    with closing(sqlite3.connect(older)) as opened:
        columns = [row[1] for row in opened.execute("PRAGMA table_info(megatune_targets)")]
        assert "place" not in columns
    next_release.write_text(text)
    assert schema.upgrade(older) == "9000"


def test_no_upgrade_while_a_campaign_runs(older: Path) -> None:
    with writer_lock(older), pytest.raises(DatabaseLockedError, match="running a campaign"):
        schema.upgrade(older)
    assert list(older.parent.glob("*.backup")) == []


def test_a_copy_that_does_not_fit_stops_the_upgrade(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema.revision(older)
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
    assert schema.revision(older) == before


def _open_and_put(path: Path, barrier: object, number: int) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    with open_database(path) as opened, opened.session() as session:
        store.put_target(session, digest=f"t{number}", hardware={}, toolchain={})


def test_several_processes_can_make_the_same_database(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_open_and_put, args=(path, barrier, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with open_database(path, read_only=True) as opened, opened.session() as session:
        assert len(queries.targets(session)) == 3


@pytest.mark.parametrize("asset", sorted(ASSETS.glob("*.sql")), ids=lambda asset: asset.stem)
def test_databases_of_every_release_can_be_upgraded(path: Path, asset: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(asset.read_text())
    assert schema.revision(path) == asset.stem
    assert schema.upgrade(path) == schema.head()
    with open_database(path) as opened, opened.session() as session:
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
        assert known["config-0"].revision == ("" if asset.stem == "0001" else "r1")
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
        assert log == ([] if asset.stem < "0003" else kept)
        assert len(queries.plan_exports(session)) == (asset.stem >= "0003")
        parts = [row.parts_us for row in queries.measurements(session, range(1, 5)).values() if row.parts_us]
        assert parts == ([] if asset.stem < "0004" else [(("idle", 5.25),)])
        assert len(queries.verifications(session)) == len(queries.repeats(session)) == (asset.stem >= "0007")
        assert len(queries.priors(session)) == (asset.stem >= "0008")


def test_an_upgrade_leaves_one_plan_in_service(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript((ASSETS / "0002.sql").read_text())
        for number, (name, state) in enumerate(
            [("a", "exported"), ("b", "exported"), ("a", "exported"), ("a", "draft")]
        ):
            raw.execute(
                "INSERT INTO megatune_plans (digest, name, content, state, target_id, created_at) "
                "VALUES (?, ?, '{}', ?, 1, '2026-08-01 12:00:00.000000')",
                (f"p{number}", name, state),
            )
        raw.commit()
    schema.upgrade(path)
    with open_database(path) as opened, opened.session() as session:
        states = {row.digest: row.state.value for row in queries.plan_summaries(session)}
        assert states == {"plan": "approved", "p0": "retired", "p1": "exported", "p2": "exported", "p3": "draft"}
        (entry,) = queries.reviews(session)
        assert (entry.plan, entry.other, entry.who) == ("p0", "p2", "megatune db upgrade")
        assert (entry.action, entry.before, entry.after) == ("retire", "exported", "retired")
        assert [row.digest for row in queries.earlier_plans(session, "p2")] == []
        replaced = queries.replaced_plan(session, "p2")
        assert replaced is not None
        assert replaced.digest == "p0"


def test_every_revision_has_its_asset() -> None:
    script = {revision.revision for revision in schema._script().walk_revisions()}
    assert {asset.stem for asset in ASSETS.glob("*.sql")} == script


def test_a_revision_of_no_release_is_newer(path: Path) -> None:
    with pytest.raises(NewerSchemaError):
        schema.check(path, "0000")
