"""PostgreSQL for tests: one server for each process that runs tests, and databases on it that are cheap."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseError
from megatune_db.session import open_database

TEMPLATE = "template_with_tables"
# To empty a database takes a tenth of the time that making another takes. Triggers, which forbid it, do not fire here.
_EMPTY = """
DO $$
DECLARE each record;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    SET LOCAL session_replication_role = replica;
    FOR each IN SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' LOOP
        IF each.name NOT LIKE 'megatune_%' THEN
            EXECUTE format('DROP TABLE %I CASCADE', each.name);
        ELSIF each.name <> 'megatune_alembic_version' THEN
            EXECUTE format('DELETE FROM %I', each.name);
        END IF;
    END LOOP;
    FOR each IN SELECT sequencename AS name FROM pg_sequences WHERE schemaname = 'public' LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', each.name);
    END LOOP;
END $$
"""
_numbers = itertools.count()


class Databases:
    """Databases of one server: those that are given back are emptied and given out again."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self._free: list[str] = []
        server.execute(f"CREATE DATABASE {TEMPLATE}")
        open_database(server.url(TEMPLATE)).close()

    def take(self) -> str:
        """The name of a database that has tables and no rows."""
        return self._free.pop() if self._free else self.make(template=TEMPLATE)

    def give_back(self, name: str) -> None:
        """For one whose schema is as it was."""
        self.server.execute(_EMPTY, database=name)
        self._free.append(name)

    def make(self, *, template: str = "template0") -> str:
        """The name of a new database."""
        name = f"test_{next(_numbers)}"
        self.server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[Databases]:
    """PostgreSQL, once for each process that runs tests; where it cannot run, tests are skipped, and fail in CI."""
    try:
        server = EmbeddedServer({"autovacuum": "off"}).start()
    except DatabaseError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        yield Databases(server)
    finally:
        server.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """A database of PostgreSQL with tables and no rows. Leave its schema as it is."""
    name = postgres_databases.take()
    yield postgres_databases.server.url(name)
    postgres_databases.give_back(name)


@pytest.fixture
def new_postgres(postgres_databases: Databases) -> Iterator[Callable[..., str]]:
    """Makes empty databases, and returns the URL of each; ``tables=True`` gives them tables. Gone at its end."""
    made = []

    def make(*, tables: bool = False) -> str:
        name = postgres_databases.make(template=TEMPLATE if tables else "template0")
        made.append(name)
        return postgres_databases.server.url(name)

    yield make
    for name in made:
        postgres_databases.drop(name)


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server of the test's own, to kill and to start again."""
    try:
        server = EmbeddedServer().start()
    except DatabaseError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield server
    server.close()
