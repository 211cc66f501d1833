"""Sources of the runtimes' released wheels, run without torch, a GPU and the rest of their packages.

What runs is the release's own, with stand-ins for what it asks of the machine and nothing else.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from megatune_kernels.runtime_source import Runtime
from tests.contract.runtime_wheels import wheel


def source(runtime: str, version: str, path: str) -> str:
    """Text of a file of that release. Without its wheel the test is skipped, and fails in CI."""
    text = Runtime(runtime, version, wheel(runtime.replace("-", "_"))).read(path)
    assert text is not None, f"{runtime} {version} has no {path}"
    return text


@contextmanager
def stand_ins(**modules: Any) -> Iterator[None]:
    """Modules with these attributes, and the packages that they are in, for whatever imports them meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, attributes in modules.items():
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                if package not in modules or package == name:
                    module = ModuleType(package)
                    module.__path__ = []
                    module.__dict__.update(attributes if package == name else {})
                    patch.setitem(sys.modules, package, module)
        yield


def run(text: str, name: str, **modules: Any) -> ModuleType:
    """A whole module of a release, run by its full name with stand-ins for what it imports."""
    module = ModuleType(name)
    with stand_ins(**modules), pytest.MonkeyPatch.context() as patch:
        # Where dataclasses look for what annotations name.
        patch.setitem(sys.modules, name, module)
        module.__package__ = name.rpartition(".")[0]
        exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module


def functions(text: str, names: set[str], **others: Any) -> dict[str, Any]:
    """The functions and classes of these names, without their decorators, in a namespace with the others."""
    definitions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    wanted = [node for node in definitions if node.name in names]
    assert {node.name for node in wanted} == names, f"the release lacks {names - {node.name for node in wanted}}"
    for node in wanted:
        # A cache would keep what a stand-in of another test said.
        node.decorator_list = []
    # Annotations stay text: what they name is not there.
    future = ast.parse("from __future__ import annotations").body
    namespace: dict[str, Any] = {"__name__": "of_a_release", **others}
    exec(compile(ast.Module([*future, *wanted], type_ignores=[]), "<release>", "exec"), namespace)
    return namespace
