"""Tests marked for hardware or packages that are not here are skipped, with the reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck
from hypothesis import settings

from tests.postgres import new_postgres
from tests.postgres import own_server
from tests.postgres import postgres_databases
from tests.postgres import postgres_url

# No limit on the time of an example: machines may be busy.
settings.register_profile("megatune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("megatune")

__all__ = ["new_postgres", "own_server", "postgres_databases", "postgres_url"]


@cache
def gpus() -> int:
    """NVIDIA GPUs that this machine shows, 0 without a driver."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """A page that Streamlit runs becomes ``__main__``, which processes that a later test starts would run again."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs = {
        "gpu": (gpus() >= 1, "no GPU here"),
        "multi_gpu": (gpus() >= 2, "fewer than two GPUs here"),
        "torch": (find_spec("torch") is not None, "torch is not installed"),
    }
    for item in items:
        for marker, (there, reason) in needs.items():
            if item.get_closest_marker(marker) and not there:
                item.add_marker(pytest.mark.skip(reason=reason))
