"""The toy operator stands in for the registered ones."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import toy

from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseError


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with toy.registered():
        yield


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A PostgreSQL that the test may kill."""
    try:
        server = EmbeddedServer().start()
    except DatabaseError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.close()
