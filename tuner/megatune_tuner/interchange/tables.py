"""Tables and caches of serving runtimes: which config each found best, mostly without how long it takes.

- Fused-MoE tables of vLLM and SGLang: ``E=…,N=…,device_name=….json``, rows of a Triton kernel's parameters by tokens.
- FlashInfer's autotuner: its cache as JSON, and the tables that it ships as Python. A key names an operation, a runner
  and the shapes of its operands, a value the runner and its tactic.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Prior

VLLM_MOE = "vllm-moe-table"
SGLANG_MOE = "sglang-moe-table"
FLASHINFER = "flashinfer-cache"
LONGEST_TOKENS = 9
"""Digits of a number of tokens."""
_FIELD = re.compile(r"([A-Za-z_]+)=(\[[^\]]*\]|[^,]*)(?:,|$)")
_TRITON = re.compile(r"triton_(\d+)_(\d+)_(\d+)")
_TRITON_KEY = "triton_version"
_DOWN = "_down"
"""SGLang's tables of the second matrix end so."""


def moe_table(path: Path, kind: str) -> list[Prior]:
    """The rows of a fused-MoE table.

    :param kind: ``VLLM_MOE`` or ``SGLANG_MOE``.
    :raises MegatuneError: when the name or the content is not such a table's.
    """
    stem = path.name.removesuffix(".json")
    place: dict[str, Any] = {}
    if kind == SGLANG_MOE and stem.endswith(_DOWN):
        stem = stem.removesuffix(_DOWN)
        place["down"] = True
    for name, value in _FIELD.findall(stem):
        place[name] = _value(value)
    if not {"E", "N", "device_name"} <= place.keys():
        raise MegatuneError(
            f"{path} is not named as fused-MoE tables are: E=…,N=…,device_name=….json, with what else finds it"
        )
    folder = _TRITON.fullmatch(path.absolute().parent.name)
    if folder is not None:
        place[_TRITON_KEY] = ".".join(folder.groups())
    document = _json(path)
    if _TRITON_KEY in document:
        place[_TRITON_KEY] = document.pop(_TRITON_KEY)
    found = []
    for key, row in document.items():
        if not key.isdecimal() or len(key) > LONGEST_TOKENS or not isinstance(row, dict) or not row:
            raise MegatuneError(f"{path} is no fused-MoE table: {key!r} is not a number of tokens with a config")
        found.append(Prior(kind, path.name, place, int(key), row))
    if not found:
        raise MegatuneError(f"{path} is a fused-MoE table without rows")
    return found


def flashinfer_cache(path: Path) -> list[Prior]:
    """The entries of a cache of FlashInfer's autotuner, or of a table that FlashInfer ships.

    :raises MegatuneError: when it is neither.
    """
    document = _assigned(path) if path.suffix == ".py" else _json(path)
    about = document.pop("_metadata", None) or {}
    document.pop("_generation", None)
    records = document.pop("_records", None) or {}
    found = []
    if not isinstance(about, dict) or not isinstance(records, dict):
        raise MegatuneError(f"{path} is no cache of FlashInfer's autotuner: what it says of itself is no table")
    for key, value in document.items():
        try:
            operation, runner, *shapes = ast.literal_eval(key)
            # Tables that are shipped name a runner by its number among the operation's.
            chosen, tactic = value[0], value[1]
        except (ValueError, SyntaxError, TypeError, IndexError, KeyError, RecursionError, MemoryError) as error:
            raise MegatuneError(f"{path} is no cache of FlashInfer's autotuner: {str(key)[:80]!r}") from error
        place = {**about, "operation": operation, "runner": runner, "shapes": _lists(shapes)}
        found.append(Prior(FLASHINFER, path.name, place, None, {"runner": chosen, "tactic": _lists(tactic)}))
    for namespace, entries in records.items():
        if not isinstance(entries, dict):
            raise MegatuneError(f"{path} is no cache of FlashInfer's autotuner: {namespace[:80]!r} holds no entries")
        for key, value in entries.items():
            found.append(Prior(FLASHINFER, path.name, {**about, "namespace": namespace, "key": key}, None, value))
    if not found:
        raise MegatuneError(f"{path} is a cache of FlashInfer's autotuner without entries")
    return found


def files_of(path: Path, kind: str) -> Iterator[Path]:
    """The file, or the files of that kind in a folder and below it.

    :raises MegatuneError: when there are none.
    """
    if not path.is_dir():
        yield path
        return
    pattern = "*.json" if kind == FLASHINFER else "E=*.json"
    found = sorted(path.rglob(pattern))
    if not found:
        raise MegatuneError(f"{path} has no {pattern} in it or below")
    yield from found


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise MegatuneError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise MegatuneError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MegatuneError(f"{path} is not a table: it holds a {type(document).__name__}")
    return document


def _assigned(path: Path) -> dict[str, Any]:
    """The dictionary that a module assigns to ``best_configs``; nothing of it runs."""
    try:
        module = ast.parse(path.read_text(encoding="utf-8-sig"))
        for node in module.body:
            if isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == ["best_configs"]:
                found = ast.literal_eval(node.value)
                if isinstance(found, dict):
                    return found
    except OSError as error:
        raise MegatuneError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MegatuneError(f"{path} is no table of FlashInfer's autotuner: {error}") from error
    raise MegatuneError(f"{path} is no table of FlashInfer's autotuner: it assigns no best_configs")


def _value(text: str) -> Any:
    """A field of a file's name: a number, a list of numbers, a truth value or a name."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lists(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, list | tuple):
        return [_lists(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _lists(each) for key, each in value.items()}
    return value
