"""Copies of a database: whole files of SQLite's, or row by row from one engine to the other.

A copy of rows has the revision of what it is taken from, whichever program takes it, so that it can be made before an
upgrade and goes back where it came from. Optuna's studies follow from the rows and are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from pathlib import Path

from sqlalchemy import JSON
from sqlalchemy import MetaData
from sqlalchemy import Table
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import text
from sqlalchemy.engine import Connection

from megatune_db import schema
from megatune_db.backend import VERSION_TABLE
from megatune_db.backend import Backend
from megatune_db.backend import backend_at
from megatune_db.dialects import ids_go_on
from megatune_db.errors import DatabaseError
from megatune_db.errors import DatabaseMissingError
from megatune_db.errors import EmptyDatabaseError
from megatune_db.location import Location
from megatune_db.location import Where
from megatune_db.location import locate
from megatune_db.lock import lock_path
from megatune_db.models import PREFIX

_CHUNK = 5_000
"""Rows in memory at once."""


@dataclass(frozen=True)
class Copied:
    """What a copy holds."""

    to: Location
    revision: str
    rows: int | None
    """None where the file was copied whole."""


def back_up(where: Where, to: Path | None = None) -> Copied:
    """Write all that is committed now to a new SQLite file; a campaign may go on meanwhile.

    :param to: the file; by default one with the time in its name, beside the database's file or here.
    :raises DatabaseMissingError: when there is no database.
    :raises DatabaseError: when the file is there already, or cannot be written.
    """
    backend = backend_at(where)
    if not backend.look(write=False):
        raise DatabaseMissingError(schema.missing(backend))
    if to is None:
        to = free_path(backend.location, f"{datetime.now(UTC):%Y%m%d-%H%M%S}")
    return write_backup(backend, to)


def write_backup(backend: Backend, to: Path) -> Copied:
    """The same into a file that is not there, of a database that is."""
    if to.exists():
        raise DatabaseError(f"{to} is there already: name another file for the backup")
    found = schema.revision(backend)
    if backend.copy_whole(to):
        return Copied(Location(str(to)), found or "", None)
    try:
        copied = copy(backend.location, to)
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            to.with_name(to.name + suffix).unlink(missing_ok=True)
        raise
    finally:
        # Nobody else knows the file yet.
        lock_path(to.resolve()).unlink(missing_ok=True)
    return copied


def free_path(location: Location, what: str) -> Path:
    """Where a backup goes that nobody named: ``NAME.WHAT.backup`` beside the file or here, or with a number."""
    numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (f"{location.name}.{what}{number}.backup" for number in numbers)
    return next(path for name in names if not (path := location.folder / name).exists())


def copy(source: Where, target: Where) -> Copied:
    """Copy every row into a database that holds none yet, at the revision that the source has.

    The source is read as it is at one moment; a campaign may go on in it.

    :raises EmptyDatabaseError: when the source has none of Megatune's tables.
    :raises DatabaseError: when the target has tables already, and whatever opening the two raises.
    """
    from_, to = backend_at(source), backend_at(locate(target))
    if not from_.look(write=False):
        raise DatabaseMissingError(schema.missing(from_))
    found = schema.revision(from_)
    if found is None:
        raise EmptyDatabaseError(f"{from_.location} holds no megatune tables: there is nothing to copy")
    schema.check_known(from_, found)
    in_use = DatabaseError(f"{to.location} is in use already: copy into a new database")
    if to.look(write=True) and schema.revision(to) not in (None, found):
        raise in_use
    schema.create(to, found)
    reading = from_.engine(read_only=True, pooled=False)
    try:
        with reading.connect() as old, to.migrating() as new:
            # Tables without a row are what an interrupted copy leaves; of two copies at once the second one waits here.
            if any(new.execute(select(table).limit(1)).first() for table in _tables(new)):
                raise in_use
            from_.hold_still(old)
            rows = sum(_copy_table(old, new, table) for table in _tables(old))
    finally:
        reading.dispose()
    return Copied(to.location, found, rows)


def _tables(connection: Connection) -> Iterator[Table]:
    """Ours, each after those that it refers to."""
    found = MetaData()
    found.reflect(connection, only=lambda name, _: name.startswith(PREFIX) and name != VERSION_TABLE)
    yield from found.sorted_tables


def _copy_table(old: Connection, new: Connection, source: Table) -> int:
    target = Table(source.name, MetaData(), autoload_with=new, resolve_fks=False)
    for column in (*source.columns, *target.columns):
        if isinstance(column.type, JSON):
            column.type = JSON(none_as_null=True)
    count = 0
    rows = old.execution_options(yield_per=_CHUNK).execute(select(source).order_by(*source.primary_key)).mappings()
    for chunk in rows.partitions():
        new.execute(insert(target), [dict(row) for row in chunk])
        count += len(chunk)
    if new.dialect.name == "postgresql" and "id" in target.columns:
        new.execute(ids_go_on(target.name))
    # A table without rows in the target is what was promised; triggers refuse to mend anything else.
    assert new.scalar(text(f"SELECT count(*) FROM {target.name}")) == count
    return count
