"""Optuna's studies, which live in the same file in tables of their own. Optuna is imported where it is used."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_db import connection
from megatune_db.connection import Mode
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import OlderSchemaError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


def open_storage(path: Path) -> RDBStorage:
    """Optuna's storage in the file; makes its tables when they are not there.

    :raises OlderSchemaError: when an older Optuna wrote the tables.
    :raises NewerSchemaError: when a newer one did.
    """
    storage = _storage(path, create=True)
    try:
        _check(storage, path)
        if storage.get_current_version() != storage.get_head_version():
            raise OlderSchemaError(
                f"{path} holds studies of an older Optuna: run `megatune db upgrade --db {path}` (it keeps a copy)"
            )
    except BaseException:
        close(storage)
        raise
    return storage


def needs_upgrade(path: Path) -> bool:
    """Whether the file holds tables of an older Optuna.

    :raises NewerSchemaError: when a newer one wrote them.
    """
    with connection.translated(path), contextlib.closing(connection.connect(path, Mode.READ)) as opened:
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'studies'").fetchone():
            return False
    storage = _storage(path, create=False)
    try:
        _check(storage, path)
        return storage.get_current_version() != storage.get_head_version()
    finally:
        close(storage)


def upgrade(path: Path) -> None:
    """Bring Optuna's tables to the schema of the Optuna that is installed."""
    storage = _storage(path, create=False)
    try:
        with connection.translated(path):
            storage.upgrade()
    finally:
        close(storage)


def close(storage: RDBStorage) -> None:
    """Close the storage's connections."""
    storage.remove_session()
    storage.engine.dispose()


def _storage(path: Path, *, create: bool) -> RDBStorage:
    from optuna.storages import RDBStorage

    with connection.translated(path):
        storage = RDBStorage(
            # Optuna reads braces in a URL as a template.
            connection.url_of(path).replace("{", "{{").replace("}", "}}"),
            # Optuna's models were not written for SQLite's foreign keys, which are off unless asked for.
            engine_kwargs={"creator": lambda: connection.connect(path, foreign_keys=False)},
            skip_compatibility_check=True,
            skip_table_creation=not create,
        )
    connection.translate_errors(storage.engine, path)
    return storage


def _check(storage: RDBStorage, path: Path) -> None:
    if storage.get_current_version() not in storage.get_all_versions():
        raise NewerSchemaError(f"{path} holds studies of a newer Optuna: upgrade Optuna")
