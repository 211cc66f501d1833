"""Asks a small function of somebody else's source without importing or trusting it.

A function that reads a grammar is a few lines of string handling. It is run where every part of its syntax is on the
list below: it then reaches nothing but its argument, and ends.
"""

from __future__ import annotations

import ast
import copy
from types import MappingProxyType
from typing import Any

_NODES = (
    *(ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr),
    *(ast.For, ast.If, ast.IfExp, ast.Continue, ast.Break, ast.Pass, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp),
    *(ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Store, ast.Constant),
    *(ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.SetComp),
    *(ast.GeneratorExp, ast.comprehension, ast.Starred, ast.Raise, ast.JoinedStr, ast.FormattedValue),
)
_METHODS = frozenset(
    ("split", "rsplit", "partition", "rpartition", "strip", "lstrip", "rstrip", "isdigit", "isdecimal", "removeprefix")
) | {"removesuffix", "startswith", "endswith", "lower", "upper", "update", "append", "extend", "items", "get", "keys"}
_BUILTINS = MappingProxyType(
    {
        each.__name__: each
        for each in (int, float, str, bool, tuple, list, dict, set, frozenset, range, map, filter, zip, enumerate)
    }
    | {each.__name__: each for each in (len, min, max, sum, sorted, any, all, isinstance, ValueError)}
)


class Impure(Exception):
    """Why a function is not asked, or what it raised: one line."""


def compute(function: ast.FunctionDef, argument: Any) -> Any:
    """What the function makes of its one argument.

    :raises Impure: when it does more than handle texts, numbers and tables, takes more than one argument, or raises.
    """
    function = _without_annotations(function)
    _check(function)
    scope: dict[str, Any] = {"__builtins__": dict(_BUILTINS)}
    definition = ast.Module([function], type_ignores=[])
    try:
        exec(compile(definition, "<grammar>", "exec"), scope)
        return scope[function.name](argument)
    except Exception as error:  # noqa: BLE001  (whatever a stranger's function raises)
        raise Impure(f"it raises {type(error).__name__} for {argument!r}") from None


def _without_annotations(function: ast.FunctionDef) -> ast.FunctionDef:
    """A copy: what annotates may name anything, and decides nothing."""
    bare = copy.deepcopy(function)
    bare.returns = None
    for each in ast.walk(bare):
        if isinstance(each, ast.arg):
            each.annotation = None
    return bare


def _check(function: ast.FunctionDef) -> None:
    arguments = function.args
    if len(arguments.args) != 1 or arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise Impure("it takes more than one argument")
    if function.decorator_list:
        raise Impure("it is decorated")
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = own | set(_BUILTINS) | {arguments.args[0].arg}
    for node in ast.walk(function):
        if not isinstance(node, _NODES):
            raise Impure(f"it has a {type(node).__name__} in line {getattr(node, 'lineno', '?')}")
        if isinstance(node, ast.Attribute) and node.attr not in _METHODS:
            raise Impure(f"it uses {node.attr}")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
            raise Impure(f"it uses {node.id}")
