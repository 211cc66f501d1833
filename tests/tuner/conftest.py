"""The toy operator stands in for the registered ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import toy


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with toy.registered():
        yield
