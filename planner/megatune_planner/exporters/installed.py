"""What the installed runtime's own source says: read and never imported, because an import would load torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

ANY = object()
"""A name must be there, whatever its value."""

Names = Mapping[str, Mapping[str, object]]
"""By path inside the distribution: the names that its file must have, each with its literal, or ``ANY``."""


def differences(runtime: str, names: Names) -> Iterator[str]:
    """One line for each name that the installed runtime lacks, or gives another value.

    :raises PackageNotFoundError: when the runtime is not installed.
    """
    installed = distribution(runtime)
    for path, wanted in names.items():
        file = Path(str(installed.locate_file(path)))
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            yield f"{path} cannot be read"
            continue
        found = dict(_names(tree))
        for name, value in wanted.items():
            if name not in found:
                yield f"{path} has no {name}"
            elif value is not ANY and found[name] != value:
                yield f"{path} has another {name}"


def _names(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Every name that the module, or a class in it, defines or imports, with its value where that is a literal."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, _literal(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, _literal(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, each in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name):
                        yield target.id, _literal(each)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, ANY
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield alias.asname or alias.name, ANY


def _literal(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else ANY
    except ValueError:
        return ANY
