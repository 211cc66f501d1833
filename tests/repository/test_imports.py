"""Heavy packages are imported where they are used: whoever plans, exports or asks for help waits for none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "cutlass", "cuda", "streamlit")

LIGHT = (
    "megatune_dashboard.command",
    "megatune_db.session",
    "megatune_kernels.operator",
    "megatune_kernels.projection",
    "megatune_planner",
    "megatune_planner.commands",
    "megatune_tuner",
    "megatune_tuner.commands",
)


@pytest.mark.parametrize("module", LIGHT)
def test_importing_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    code = code.replace(repr(HEAVY), repr(set(HEAVY)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_reader_needs_the_standard_library_alone() -> None:
    code = """
import sys
before = set(sys.modules)
import megatune_planner.reader
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names) - {"megatune_planner"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
