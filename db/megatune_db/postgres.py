"""PostgreSQL: many writers, on many machines. psycopg is imported where it is used."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Hashable
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy import event
from sqlalchemy import inspect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import Backend
from megatune_db.backend import Watch
from megatune_db.connection import BUSY_TIMEOUT_S
from megatune_db.connection import json_text
from megatune_db.dialects import LOCKS
from megatune_db.dialects import WRITER
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseFullError
from megatune_db.errors import DatabaseLockedError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.errors import ReadOnlyError
from megatune_db.location import Location

if TYPE_CHECKING:
    import psycopg

CONNECT_S = 10
"""Seconds for which a host may take to answer, unless the URL says otherwise."""
_URL = "postgresql+psycopg://"
# A host that went away is noticed within a minute, and a campaign that ended with its host does not keep its lock.
_KEEP_ALIVE = {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
_SETTINGS = (
    f"SET lock_timeout = '{BUSY_TIMEOUT_S:.0f}s'",
    "SET timezone = 'UTC'",
    "SET tcp_keepalives_idle = 20",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
)
# What libpq and psycopg say of a URL before they use it, and may repeat any of its values in.
_OPTION = re.compile(
    r"invalid connection option|bad value for|invalid (port number|integer value|\w+ value)|could not match \d+ port"
)
_NAME = re.compile(r"megatune (\d+)@(.*)")
_HOLDER = """
SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %(key)s AND l.objid = %(lock)s AND l.objsubid = 2
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class PostgresBackend(Backend):
    """A database of a server."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        try:
            url = make_url(location.given.strip())
            _, self._arguments = PGDialect_psycopg().create_connect_args(url)  # type: ignore[no-untyped-call]
        except (ArgumentError, ValueError, TypeError):
            # Not even "from": the text of the error, or of its frames, may hold the password.
            raise DatabaseError(f"{location} is not a database URL: use postgresql://USER@HOST/DATABASE") from None

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        """A connection of the driver's. The password comes from the URL, ``PGPASSWORD`` or ``~/.pgpass``."""
        import psycopg

        given = {"connect_timeout": CONNECT_S, **_KEEP_ALIVE, "application_name": _name(os.getpid()), **self._arguments}
        given["client_encoding"] = "utf8"
        opened = psycopg.connect(**given, autocommit=True)
        try:
            for setting in _SETTINGS:
                opened.execute(setting.encode())
            _adapt(opened)
            opened.autocommit = autocommit
        except BaseException:
            opened.close()
            raise
        return opened

    def look(self, *, write: bool) -> bool:
        if find_spec("psycopg") is None:
            raise DatabaseError("PostgreSQL needs psycopg: pip install 'megatune[postgres]'")
        return True

    def make(self) -> None:
        """Nothing: who may make databases on a server is its owner's to say."""

    def engine(self, *, read_only: bool = False, pooled: bool = True) -> Engine:
        options: dict[str, Any] = {"pool_pre_ping": True} if pooled else {"poolclass": NullPool}
        if read_only:
            options["execution_options"] = {"postgresql_readonly": True}
        return self.translate(create_engine(_URL, creator=self.connect, **options))

    @contextlib.contextmanager
    def migrating(self) -> Iterator[Connection]:
        engine = self.engine(pooled=False)
        with engine.connect() as opened, opened.begin():
            if inspect(opened).has_table(VERSION_TABLE):
                # Whoever reads the revision holds a lock on the table to the end of the transaction.
                opened.exec_driver_sql(f"LOCK TABLE {VERSION_TABLE} IN ACCESS EXCLUSIVE MODE")
            yield opened

    def guard(self, engine: Engine, revision: str) -> None:
        @event.listens_for(engine, "begin")
        def _begun(opened: Connection) -> None:
            # Reading it locks the table, weakly, so that a migration waits for the end of the transaction.
            if opened.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar() != revision:
                raise self.outdated()

    @contextlib.contextmanager
    def writer_lock(self) -> Iterator[None]:
        with self.translated():
            holding = self.connect(autocommit=True)
        try:
            with self.translated():
                keys = {"key": LOCKS, "lock": WRITER}
                row = holding.execute("SELECT pg_try_advisory_lock(%(key)s, %(lock)s)", keys).fetchone()
                if row != (True,):
                    name = holding.execute(_HOLDER, keys).fetchone()
                    raise DatabaseLockedError(self._locked_by("" if name is None else str(name[0])))
            yield
        finally:
            # The lock ends with the connection.
            holding.close()

    def _locked_by(self, name: str) -> str:
        found = _NAME.fullmatch(name)
        if found is None:
            who = "another program"
        elif _here(name) == os.getpid():
            return f"this process is already running a campaign in {self.location}; wait for it or use another --db"
        else:
            who = f"another process (pid {found[1]} on {found[2]})"
        return f"{who} is running a campaign in {self.location}; wait for it or use another --db"

    def writer(self) -> int | None:
        with self.translated(), contextlib.closing(self.connect(autocommit=True)) as opened:
            row = opened.execute(_HOLDER, {"key": LOCKS, "lock": WRITER}).fetchone()
        return None if row is None else _here(str(row[0]))

    def watch(self) -> Watch:
        return _Snapshots(self)

    def identity(self) -> Hashable:
        return str(self.location)

    def optuna(self, *, upgrading: bool) -> tuple[str, dict[str, Any]]:
        options = {"creator": self.connect, "pool_pre_ping": True}
        if not upgrading:
            return _URL, options
        # To upgrade, Optuna makes an engine of its own, of the URL alone.
        url = make_url(self.location.given.strip()).set(drivername="postgresql+psycopg")
        return url.render_as_string(hide_password=False), options

    def hold_still(self, opened: Connection) -> None:
        opened.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def copy_whole(self, target: Path) -> bool:
        del target
        return False

    def meaning(self, error: BaseException | None) -> DatabaseError | None:
        if find_spec("psycopg") is None:
            return None
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        if not state and _OPTION.search(str(error)):
            return DatabaseError(
                f"an option or the port in the URL of {self.location} is none of PostgreSQL's, or has no such value"
            )
        found = self._refused(state) or self._trouble(state)
        if state == "22001":
            return DatabaseError(f"a name is too long for {self.location} ({error.diag.message_primary}): shorten it")
        if found is None and not state and isinstance(error, psycopg.OperationalError):
            found = self._not_connected(str(error))
        return found

    def _refused(self, state: str) -> DatabaseError | None:
        user = self._arguments.get("user", "the user")
        match state:
            case "28P01":
                return DatabaseError(
                    f"the password of {user} is wrong for {self.location}: "
                    "give the right one in the URL, PGPASSWORD or ~/.pgpass"
                )
            case "28000":
                return DatabaseError(f"{self.location} does not let {user} in: check the user and pg_hba.conf")
            case "3D000":
                return DatabaseMissingError(
                    f"there is no database {self.location.name} at {self.location}: have it made (CREATE DATABASE)"
                )
            case "42501":
                return ReadOnlyError(
                    f"{user} may not do that in {self.location}: have its owner grant the rights, or use another user"
                )
            case "25006":
                return ReadOnlyError(f"{self.location} cannot be written: it was opened read-only, or is a standby")
        return None

    def _trouble(self, state: str) -> DatabaseError | None:
        match state:
            case "53100":
                return DatabaseFullError(
                    f"no space is left for {self.location}: free some on its server and run again; "
                    "what was committed before is kept"
                )
            case "58030":
                return DatabaseError(f"the server of {self.location} cannot read or write its disk: check it")
            case "53300":
                return DatabaseUnreachableError(f"{self.location} has no connection left: try again, or have more")
            case "55P03":
                return DatabaseLockedError(
                    f"another process has been changing {self.location} for {BUSY_TIMEOUT_S:.0f} s: "
                    "wait for it and run again"
                )
            case "40P01" | "40001":
                return DatabaseLockedError(f"another process changed the same in {self.location}: run again")
        if state.startswith(("08", "57P")):
            return DatabaseUnreachableError(f"{self.location} has ended the connection: run again once it is back")
        return None

    def _not_connected(self, said: str) -> DatabaseError:
        """What is meant by an error without a code: libpq tells most about connecting in words alone."""
        user = re.escape(str(self._arguments.get("user", "")))
        if re.search(r"password authentication failed|no password supplied|authentication failed", said):
            return (
                self._refused("28P01")
                if "no password" not in said
                else DatabaseError(  # type: ignore[return-value]
                    f"{self.location} asks for a password: give it in PGPASSWORD or ~/.pgpass"
                )
            )
        for pattern, state in (
            (r'database "[^"]*" does not exist', "3D000"),
            (rf'role "{user}" does not exist|no pg_hba.conf entry|is not permitted to log in', "28000"),
            (r"permission denied for database", "42501"),
            (r"too many (clients|connections)|remaining connection slots", "53300"),
        ):
            if re.search(pattern, said):
                found = self._refused(state) or self._trouble(state)
                assert found is not None
                return found
        if re.search(r"failed to resolve host|could not translate host name|Name or service not known", said):
            return DatabaseUnreachableError(f"{self.location}: there is no such host; check the URL")
        if re.search(r"the database system is (starting up|shutting down|in recovery mode)", said):
            return DatabaseUnreachableError(f"{self.location} is just starting or stopping: run again in a moment")
        if re.search(r"does not support SSL|SSL was required|certificate|SSL error", said):
            return DatabaseError(f"{self.location} and its client do not agree on TLS: check sslmode and certificates")
        if re.search(r"connection to server|connection timeout|connection failed", said):
            return DatabaseUnreachableError(
                f"{self.location} does not answer: check host, port and network, and that PostgreSQL runs there"
            )
        return DatabaseUnreachableError(f"{self.location} has ended the connection: run again once it is back")


class _Snapshots(Watch):
    """The snapshot that a statement would have now: it differs once a transaction has ended, of any of the server's
    databases, and not before what it did can be seen."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend = backend
        self._connection: psycopg.Connection[Any] | None = None

    def changes(self) -> str:
        with self._backend.translated():
            try:
                if self._connection is None:
                    self._connection = self._backend.connect(autocommit=True)
                row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            except BaseException:
                # The next one looks for the server anew.
                self.close()
                raise
        assert row is not None
        return str(row[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _adapt(opened: psycopg.Connection[Any]) -> None:
    """Have values become SQL as they do on SQLite."""
    from psycopg.adapt import Dumper
    from psycopg.types.json import set_json_dumps

    set_json_dumps(json_text, opened)

    class Text(Dumper):
        """Text of the server holds no zero bytes, which a compiler or a driver may have said."""

        def dump(self, obj: str) -> bytes:
            return obj.replace("\0", "\N{REPLACEMENT CHARACTER}").encode()

    opened.adapters.register_dumper(str, Text)


def _name(pid: int) -> str:
    """What a connection is called in the server's lists; it keeps 63 bytes."""
    return f"megatune {pid}@{socket.gethostname()}".encode("ascii", "replace").decode()[:63]


def _here(name: str) -> int:
    """The process of that name, 0 for one of another machine."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None and name == _name(int(found[1])) else 0
