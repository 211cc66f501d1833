"""What only a server can do: refuse, be elsewhere, go away and come back. No password is ever told."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest
from db_examples import measured
from db_examples import put_examples
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from megatune_db import queries
from megatune_db import store
from megatune_db.dialects import wait_for_imports
from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.errors import EmptyDatabaseError
from megatune_db.errors import NotADatabaseError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import locate
from megatune_db.schema import upgrade
from megatune_db.session import Database
from megatune_db.session import open_database
from tests.postgres import Databases

SECRET = "s3cr3t"
CONFIRM = """
import sys
import threading
from megatune_db.session import open_database
with open_database(sys.argv[1], read_only=True) as database, database.session() as session:
    pass
"""


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    with open_database(postgres_url) as database:
        yield database


@pytest.fixture(scope="module")
def server(postgres_databases: Databases) -> EmbeddedServer:
    """With users who have a password: ``reader`` may look, ``stranger`` may nothing."""
    opened = postgres_databases.server
    opened.execute(
        *(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'" for name in ("reader", "stranger")),
        "CREATE ROLE nologin_role NOLOGIN",
    )
    return opened


def _database_of(url: str) -> str:
    return locate(url).name


@pytest.mark.parametrize(
    "way",
    [
        *("a wrong password", "no password", "no such user", "no such database", "nobody there"),
        *("no such option", "no such port", "no TLS"),
    ],
)
def test_what_keeps_one_out_is_one_line_without_the_password(
    server: EmbeddedServer, postgres_url: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = _database_of(postgres_url)
    url, kind, message = {
        "a wrong password": (
            server.network_url("reader", SECRET + "x", database),
            DatabaseError,
            "the password of reader is wrong for postgresql://reader@127.0.0.1",
        ),
        "no password": (server.network_url("reader", None, database), DatabaseError, "asks for a password"),
        "no such user": (
            server.network_url("ghost", SECRET, database),
            DatabaseError,
            "the password of ghost is wrong",
        ),
        "no such database": (
            server.url("nowhere").replace("postgres@", f"postgres:{SECRET}@"),
            DatabaseMissingError,
            "there is no database nowhere",
        ),
        "no such option": (
            server.network_url("reader", SECRET, database) + "?foo=x",
            DatabaseError,
            "an option or the port",
        ),
        "no such port": (f"postgresql://me:{SECRET}@127.0.0.1:99999/x", DatabaseError, "an option or the port"),
        "no TLS": (
            server.network_url("reader", SECRET, database) + "?sslmode=require",
            DatabaseError,
            "do not agree on TLS",
        ),
        "nobody there": (f"postgresql://me:{SECRET}@127.0.0.1:1/x", DatabaseUnreachableError, "does not answer"),
    }[way]
    caplog.set_level(logging.DEBUG)
    for read_only in (False, True):
        with pytest.raises(kind) as raised:
            open_database(url, read_only=read_only)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
        told = "".join(traceback.format_exception(raised.value)) + caplog.text + repr(raised.value)
        assert SECRET not in told
    with pytest.raises(kind):
        upgrade(url)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(DatabaseUnreachableError, match=r"me@no-such-host\.invalid/x: there is no such host"):
        open_database(f"postgresql://me:{SECRET}@no-such-host.invalid/x")


def test_the_command_tells_no_password(server: EmbeddedServer, postgres_url: str) -> None:
    url = server.network_url("reader", SECRET + "x", _database_of(postgres_url))
    done = subprocess.run(
        [sys.executable, "-m", "megatune_dashboard", "--debug", "status", "--db", url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("megatune: the password of reader is wrong for postgresql://reader@127.0.0.1")
    assert len(done.stderr.splitlines()) == 1
    assert SECRET not in done.stdout + done.stderr


def test_who_may_look_can_look_and_not_write(server: EmbeddedServer, postgres_url: str) -> None:
    database = _database_of(postgres_url)
    with open_database(postgres_url) as owner, owner.session() as session:
        put_examples(session)
    server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database=database)
    try:
        url = server.network_url("reader", SECRET, database)
        with open_database(url, read_only=True) as opened, opened.session() as session:
            assert len(queries.targets(session)) == 1
        with (
            pytest.raises(ReadOnlyError, match="reader may not do that in postgresql://reader@") as raised,
            open_database(url) as opened,
            opened.session() as session,
        ):
            store.put_target(session, digest="x", hardware={}, toolchain={})
        assert SECRET not in "".join(traceback.format_exception(raised.value))
    finally:
        server.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM reader", database=database)


def test_who_may_nothing_is_told_so(
    server: EmbeddedServer, postgres_url: str, new_postgres: Callable[..., str]
) -> None:
    full, empty = (_database_of(url) for url in (postgres_url, new_postgres()))
    with pytest.raises(ReadOnlyError, match=r"stranger may not do that .*grant the rights"):
        open_database(server.network_url("stranger", SECRET, full), read_only=True)
    with pytest.raises(ReadOnlyError, match="stranger may not do that"):
        open_database(server.network_url("stranger", SECRET, empty))
    server.execute(f"REVOKE CONNECT ON DATABASE {empty} FROM PUBLIC")
    with pytest.raises(ReadOnlyError, match="stranger may not do that"):
        open_database(server.network_url("stranger", SECRET, empty))


def test_a_database_of_another_program_is_left_alone(new_postgres: Callable[..., str], server: EmbeddedServer) -> None:
    url = new_postgres()
    with pytest.raises(EmptyDatabaseError, match="holds no megatune tables yet"):
        open_database(url, read_only=True)
    server.execute("CREATE TABLE notes (text text)", database=_database_of(url))
    for read_only in (False, True):
        with pytest.raises(NotADatabaseError, match="of another program"):
            open_database(url, read_only=read_only)
    # A schema of its own is enough.
    server.execute("CREATE SCHEMA tuning", database=_database_of(url))
    apart = f"{url}&options=-csearch_path%3Dtuning"
    with open_database(apart) as opened, opened.session() as session:
        put_examples(session)
        assert session.scalar(text("SELECT count(*) FROM tuning.megatune_targets")) == 1
    assert open_database(apart, read_only=True).location.name == _database_of(url)


def test_read_only_writes_nothing(postgres: Database) -> None:
    with open_database(postgres.location, read_only=True) as opened:
        with pytest.raises(ReadOnlyError, match="cannot be written"), opened.session() as session:
            store.put_target(session, digest="x", hardware={}, toolchain={})
        with pytest.raises(ReadOnlyError, match="opened read-only"), opened.writer_lock():
            pass


def test_forms_of_the_url(server: EmbeddedServer, postgres_url: str) -> None:
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        url = postgres_url.replace("postgresql", scheme, 1)
        with open_database(url) as opened:
            assert str(opened.location) == str(locate(postgres_url))


def test_the_password_can_come_from_the_environment(
    server: EmbeddedServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = _database_of(postgres_url)
    server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database=database)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    try:
        open_database(server.network_url("reader", None, database), read_only=True).close()
    finally:
        server.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM reader", database=database)


def test_a_lock_that_is_never_let_go_ends_the_wait(postgres: Database) -> None:
    def wait() -> None:
        with postgres.session() as waiting:
            waiting.execute(text("SET LOCAL lock_timeout = '50ms'"))
            put_examples(waiting, tokens=1, configs=0)

    with open_database(postgres.location) as other, other.session() as session:
        put_examples(session, tokens=1, configs=0)
        with pytest.raises(DatabaseLockedError, match="another process has been changing"):
            wait()


def test_zero_bytes_do_not_lose_a_measurement(database: Database) -> None:
    with database.session() as session:
        put_examples(session)
        found = store.add_measurement(session, measured(0, 0, reason="ptxas\0said"))
        assert queries.measurements(session, [found])[found].reason == "ptxas\N{REPLACEMENT CHARACTER}said"
        store.put_campaign(session, name="a\0b", file_text="", file_digest="")
        assert queries.campaign_names(session)[0].startswith("a")


@pytest.mark.parametrize(
    ("condition", "kind", "message"),
    [
        ("disk_full", DatabaseFullError, "no space is left for postgresql://"),
        ("io_error", DatabaseError, "cannot read or write its disk"),
        ("too_many_connections", DatabaseUnreachableError, "has no connection left"),
        ("cannot_connect_now", DatabaseUnreachableError, "has ended the connection"),
        ("deadlock_detected", DatabaseLockedError, "another process changed the same"),
    ],
)
def test_what_a_server_runs_into_is_said(
    postgres: Database, condition: str, kind: type[Exception], message: str
) -> None:
    raising = text(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{condition}'; END $$")
    with pytest.raises(kind, match=message), postgres.session() as session:
        session.execute(raising)
    with postgres.session() as session:
        assert queries.targets(session) == []


def test_a_name_that_is_too_long_is_said(postgres: Database) -> None:
    with (
        pytest.raises(DatabaseError, match=r"a name is too long .*varying\(256\)\): shorten it"),
        postgres.session() as s,
    ):
        store.put_campaign(s, name="n" * 300, file_text="", file_digest="")


def test_constraints_are_faults_and_no_users_error(postgres: Database) -> None:
    with pytest.raises(IntegrityError), postgres.session() as session:
        session.execute(text("INSERT INTO megatune_targets (digest) VALUES ('x')"))


def test_a_server_that_goes_away_and_comes_back(own_server: EmbeddedServer) -> None:
    own_server.execute("CREATE DATABASE tuned")
    with open_database(own_server.url("tuned")) as database:
        with database.session() as session:
            put_examples(session)
        before = database.changes()
        own_server.kill()
        for _ in range(2):
            with pytest.raises(DatabaseUnreachableError), database.session() as session:
                queries.targets(session)
            with pytest.raises(DatabaseUnreachableError):
                database.changes()
            with pytest.raises(DatabaseUnreachableError):
                database.writer()
        own_server.start()
        with database.session() as session:
            assert len(queries.targets(session)) == 1, "what was committed is there"
            store.add_measurement(session, measured(0, 0))
        assert database.changes() != before
    process = subprocess.run([sys.executable, "-c", CONFIRM, own_server.url("tuned")], check=True)
    assert process.returncode == 0


def test_a_connection_that_is_lost_within_a_transaction_loses_it_whole(own_server: EmbeddedServer) -> None:
    own_server.execute("CREATE DATABASE tuned")
    with open_database(own_server.url("tuned")) as database:

        def write() -> None:
            with database.session() as session:
                put_examples(session)
                own_server.kill()
                store.add_measurement(session, measured(0, 0))

        with pytest.raises(DatabaseUnreachableError):
            write()
        own_server.start()
        with database.session() as session:
            assert queries.targets(session) == []


def test_a_server_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os\nfrom megatune_db.embedded import EmbeddedServer\n"
        "server = EmbeddedServer().start()\nprint(server.pid, server.folder, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    pid, folder = done.stdout.split()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the server outlives the process that started it"
        time.sleep(0.02)
    shutil.rmtree(folder)


def test_imports_of_the_same_in_another_order_take_turns(postgres: Database) -> None:
    def prior(name: str) -> store.PriorFields:
        return {"digest": name, "format": "x", "source": "x", "place": {}, "tokens": 1, "entry": {}, "reason": ""}

    begun = threading.Event()
    counts: list[int] = []

    def other() -> None:
        with postgres.session() as session:
            wait_for_imports(session)
            counts.append(store.put_priors(session, [prior("b")]))
            begun.set()
            counts.append(store.put_priors(session, [prior("a")]))

    thread = threading.Thread(target=other)
    with postgres.session() as session:
        wait_for_imports(session)
        assert store.put_priors(session, [prior("a")]) == 1
        thread.start()
        assert not begun.wait(0.5)
        assert store.put_priors(session, [prior("b")]) == 1
    thread.join()
    assert counts == [0, 0]
