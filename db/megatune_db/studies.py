"""Optuna's studies, which live in the same database in tables of their own. Optuna is imported where it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import inspect

from megatune_db.backend import Backend
from megatune_db.dialects import LOCKS
from megatune_db.dialects import STUDIES
from megatune_db.errors import NewerSchemaError
from megatune_db.errors import OlderSchemaError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


def open_storage(backend: Backend) -> RDBStorage:
    """Optuna's storage in the database; makes its tables when they are not there.

    :raises OlderSchemaError: when an older Optuna wrote the tables.
    :raises NewerSchemaError: when a newer one did.
    """
    where = backend.location
    with _alone(backend):
        storage = _storage(backend, create=True)
    try:
        _check(storage, backend)
        if storage.get_current_version() != storage.get_head_version():
            raise OlderSchemaError(
                f"{where} holds studies of an older Optuna: run `megatune db upgrade --db {where}` (it keeps a copy)"
            )
    except BaseException:
        close(storage)
        raise
    return storage


def needs_upgrade(backend: Backend) -> bool:
    """Whether the database holds tables of an older Optuna.

    :raises NewerSchemaError: when a newer one wrote them.
    """
    engine = backend.engine(read_only=True, pooled=False)
    try:
        with engine.connect() as opened:
            if not inspect(opened).has_table("studies"):
                return False
    finally:
        engine.dispose()
    storage = _storage(backend, create=False)
    try:
        _check(storage, backend)
        return storage.get_current_version() != storage.get_head_version()
    finally:
        close(storage)


def upgrade(backend: Backend) -> None:
    """Bring Optuna's tables to the schema of the Optuna that is installed."""
    storage = _storage(backend, create=False, upgrading=True)
    try:
        with backend.translated():
            storage.upgrade()
    finally:
        close(storage)


def close(storage: RDBStorage) -> None:
    """Close the storage's connections."""
    storage.remove_session()
    storage.engine.dispose()


@contextlib.contextmanager
def _alone(backend: Backend) -> Iterator[None]:
    """Of several campaigns that make Optuna's tables at once on a server, one does and the others find them there."""
    if backend.location.is_file:
        yield
        return
    engine = backend.engine(pooled=False)
    try:
        with engine.connect() as opened, opened.begin():
            opened.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCKS}, {STUDIES})")
            yield
    finally:
        engine.dispose()


def _storage(backend: Backend, *, create: bool, upgrading: bool = False) -> RDBStorage:
    from optuna.storages import RDBStorage

    url, options = backend.optuna(upgrading=upgrading)
    with backend.translated():
        storage = RDBStorage(
            # Optuna reads braces in a URL as a template.
            url.replace("{", "{{").replace("}", "}}"),
            engine_kwargs=options,
            skip_compatibility_check=True,
            skip_table_creation=not create,
        )
    backend.translate(storage.engine)
    return storage


def _check(storage: RDBStorage, backend: Backend) -> None:
    if storage.get_current_version() not in storage.get_all_versions():
        raise NewerSchemaError(f"{backend.location} holds studies of a newer Optuna: upgrade Optuna")
