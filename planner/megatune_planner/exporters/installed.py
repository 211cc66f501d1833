"""What a runtime's own source says: read and never imported, because an import would load torch.

An exporter states what its files rest on (``Exporter.relies_on``); here it is looked up. What a version has that nobody
has seen before is computed from its source like any other.
"""

from __future__ import annotations

import ast
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatune_kernels.runtime_source import Runtime
from megatune_planner.exporters.pure import Impure
from megatune_planner.exporters.pure import compute

ANY = object()
"""A name must be there, whatever its value."""


class Wanted(ABC):
    """More than a name and its value."""

    @abstractmethod
    def problem(self, name: str, node: ast.AST) -> str:
        """What is wrong with the definition, in a few words; empty where it is as it should be."""


@dataclass(frozen=True)
class Takes(Wanted):
    """A function with exactly these parameters, which others call or stand in for."""

    parameters: tuple[str, ...]

    def problem(self, name: str, node: ast.AST) -> str:
        if not isinstance(node, ast.FunctionDef):
            return f"has a {name} that is no function"
        found = tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        return "" if found == self.parameters else f"has a {name} that takes {', '.join(found) or 'nothing'}"


@dataclass(frozen=True)
class Fields(Wanted):
    """A class with exactly these fields, in this order: values are made with them."""

    names: tuple[str, ...]

    def problem(self, name: str, node: ast.AST) -> str:
        if not isinstance(node, ast.ClassDef):
            return f"has a {name} that is no class"
        found = tuple(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not _is_class_var(each)
        )
        return "" if found == self.names else f"has a {name} with the fields {', '.join(found) or 'none'}"


@dataclass(frozen=True)
class Computes(Wanted):
    """A function that gives these results, asked by running nothing but its own few lines: the grammar of a text."""

    results: tuple[tuple[Any, Any], ...]
    """Its one argument, and what has to come of it."""

    def problem(self, name: str, node: ast.AST) -> str:
        if not isinstance(node, ast.FunctionDef):
            return f"has a {name} that is no function"
        for argument, wanted in self.results:
            try:
                found = compute(node, argument)
            except Impure as error:
                return f"has a {name} that cannot be asked: {error}"
            if found != wanted:
                return f"has a {name} that reads {argument!r} as {found!r}"
        return ""


Names = Mapping[str, Mapping[str, object]]
"""By path inside the distribution: the names that its file must have, each with its literal, with ``ANY``, or with a
``Wanted``. A name is defined by the module or by any class in it; ``Class.name`` by that class."""


@dataclass(frozen=True)
class Finding:
    """What became of one name."""

    path: str
    """Of the file, from the runtime's place on."""
    name: str
    """What has to be there; empty for the file itself."""
    problem: str
    """What is wrong, in a few words; empty where nothing is."""


def examine(runtime: Runtime, names: Names) -> Iterator[Finding]:
    """Look up every name."""
    for path, wanted in names.items():
        text = runtime.read(path)
        try:
            tree = None if text is None else ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: of what is nested too deeply
            tree = None
        if tree is None:
            yield Finding(path, "", "cannot be read")
            continue
        defined = dict(_definitions(tree))
        for name, value in wanted.items():
            yield Finding(path, name, _problem(name, value, defined))


def differences(runtime: Runtime, names: Names) -> Iterator[str]:
    """One line for each name that the runtime lacks, or has otherwise."""
    for finding in examine(runtime, names):
        if finding.problem:
            yield f"{finding.path} {finding.problem}"


def _problem(name: str, wanted: object, defined: Mapping[str, ast.AST]) -> str:
    if name not in defined:
        return f"has no {name}"
    node = defined[name]
    if isinstance(wanted, Wanted):
        return wanted.problem(name, node)
    if wanted is ANY or (isinstance(node, ast.expr) and _literal(node) == wanted):
        return ""
    return f"has another {name}"


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What the module and its classes define or import: the value of an assignment, else the definition itself."""
    for name, node in _of_body(tree.body):
        yield name, node
        if isinstance(node, ast.ClassDef):
            for inner, each in _definitions(ast.Module(node.body, [])):
                yield inner, each
                yield f"{name}.{inner}", each


def _of_body(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _of_target(target, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, value or node
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield alias.asname or alias.name, node
            case ast.If(body=inner, orelse=other):
                yield from _of_body([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                handled = [each for handler in handlers for each in handler.body]
                yield from _of_body([*handled, *inner, *other, *last])
            case ast.With(body=inner):
                yield from _of_body(inner)


def _of_target(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for each, inner in zip(targets, values, strict=True):
                yield from _of_target(each, inner)
        case ast.Tuple(elts=targets), _:
            for each in targets:
                yield from _of_target(each, value)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):  # TypeError: of keys that no dict can have
        return ANY


def _is_class_var(node: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(node.annotation)
