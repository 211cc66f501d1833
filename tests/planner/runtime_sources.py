"""Functions of the runtimes' released wheels, run without torch, a GPU and the rest of their packages.

A wheel is found where it is installed, or unpacked or packed in the folder that ``MEGATUNE_RUNTIME_WHEELS`` names. Its
functions are compiled from the wheel's own source, with stand-ins for what they ask of the machine and nothing else.
"""

from __future__ import annotations

import ast
import os
import zipfile
from importlib.metadata import PackageNotFoundError
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

FOLDER_VARIABLE = "MEGATUNE_RUNTIME_WHEELS"


def source(runtime: str, version: str, path: str) -> str:
    """Text of a file of that release; the test is skipped, and fails in CI, where there is none."""
    try:
        found = distribution(runtime)
        if found.version.split("+")[0] == version:
            return Path(str(found.locate_file(path))).read_text(encoding="utf-8")
    except PackageNotFoundError:
        pass
    folder = os.environ.get(FOLDER_VARIABLE)
    for wheel in sorted(Path(folder).glob(f"{runtime.replace('-', '_')}-{version}-*.whl")) if folder else ():
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(path).decode()
    reason = f"no wheel of {runtime} {version}: set {FOLDER_VARIABLE} to a folder that has it (pip download --no-deps)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def functions(text: str, names: set[str], **stand_ins: Any) -> dict[str, Any]:
    """The functions and classes of these names, without their decorators, in a namespace with the stand-ins."""
    tree = ast.parse(text)
    wanted: list[ast.stmt] = [node for node in tree.body if _wanted(node, names)]
    found = {node.name for node in wanted if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert found == names, f"the wheel lacks {names - found}"
    for node in wanted:
        if isinstance(node, ast.FunctionDef):
            # Caches would keep what a stand-in of another test said.
            node.decorator_list = []
    module = ast.Module([_future(), *wanted], type_ignores=[])
    namespace: dict[str, Any] = {"__name__": "of_a_wheel", **stand_ins}
    exec(compile(module, "wheel", "exec"), namespace)
    return namespace


def _future() -> ast.stmt:
    """Annotations stay text: what they name is not there."""
    return ast.parse("from __future__ import annotations").body[0]


def _wanted(node: ast.stmt, names: set[str]) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
