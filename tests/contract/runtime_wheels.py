"""The released wheels that exports are tested against: vLLM, SGLang and FlashInfer from PyPI, without what they need.

``scripts/test`` downloads them into the virtual environment. Without them a test is skipped and says so; CI fails.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

FOLDER = Path(sys.prefix) / "runtimes"
VERSIONS = {
    name.replace("-", "_"): version
    for line in Path(__file__).with_name("runtimes.txt").read_text().splitlines()
    if not line.startswith("#")
    for name, _, version in [line.partition("==")]
}


def wheel(name: str) -> Path:
    """The wheel of a runtime: the test is skipped without it, and fails in CI."""
    found = sorted(FOLDER.glob(f"{name}-{VERSIONS[name]}-*.whl"))
    if not found:
        cannot_run(f"there is no wheel of {name} {VERSIONS[name]} in {FOLDER}: scripts/test downloads it")
    return found[0]


def cannot_run(why: str) -> NoReturn:
    """Skip the test, or in CI fail it: nothing is to be green there that was not tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"this has to run in CI: {why}")
    pytest.skip(why)


@cache
def members(path: Path) -> tuple[str, ...]:
    with zipfile.ZipFile(path) as archive:
        return tuple(archive.namelist())


def unpack(path: Path, into: Path, below: Iterable[str]) -> Path:
    """The sources below some folders of a wheel, and its metadata, as pip would install them."""
    wanted = tuple(below)
    with zipfile.ZipFile(path) as archive:
        for name in members(path):
            source = name.endswith((".py", ".json")) and name.startswith(wanted)
            if source or (".dist-info/" in name and name.endswith(("METADATA", "entry_points.txt"))):
                archive.extract(name, into)
    return into
