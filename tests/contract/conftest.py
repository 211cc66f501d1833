"""Registers the operator of ``plugin/`` in this process and in every child, by the way that packages do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatune_kernels.operator import operators

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="package", autouse=True)
def faulty_operator() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]))
        operators.cache_clear()
        yield
    operators.cache_clear()
    sys.modules.pop("faulty_operator", None)
