"""The published figures that come with Megatune, and those in a file of the same formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.published.entries import Entry

FORMAT = "published_crossovers/1"
SHIPPED = "figures.json"


@cache
def shipped_entries() -> tuple[Entry, ...]:
    """Every entry that comes with Megatune: figures with their sources, and own measurements."""
    text = files("megatune_planner.published").joinpath(SHIPPED).read_text(encoding="utf-8")
    return tuple(entries_of(json.loads(text), SHIPPED))


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The entries of a file.

    :raises MegatuneError: when it cannot be read, or is of neither format, with what is missing.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MegatuneError(f"cannot read {path}: {why}") from None
    except ValueError as error:
        raise MegatuneError(f"{path} is not JSON: {error}") from None
    return tuple(entries_of(document, path.stem))


def entries_of(document: Any, name: str) -> list[Entry]:
    """The entries of a document: those of ``published_crossovers/1``, or one of a table of latencies over tokens.

    Such a table has ``world``, ``hidden`` and ``rows`` with ``tokens`` and, for each mode, ``MODE_us``.

    :param name: id of a table's entry.
    :raises MegatuneError: when the document is neither.
    """
    if isinstance(document, Mapping) and isinstance(document.get("entries"), list):
        found = [entry for entry in document["entries"] if isinstance(entry, Mapping)]
        wrong = [index for index, entry in enumerate(document["entries"]) if not _is_entry(entry)]
        if wrong:
            raise MegatuneError(f"{name}: entry {wrong[0]} has no id, or its points and modes are no lists")
        return found
    if isinstance(document, Mapping) and isinstance(document.get("rows"), list):
        return [_table(document, name)]
    raise MegatuneError(f"{name} holds no published figures: expected 'entries' of {FORMAT}, or a table with 'rows'")


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and isinstance(entry.get("id"), str)
        and isinstance(entry.get("modes") or [], list)
        and isinstance(entry.get("points") or [], list)
        and all(isinstance(point, Mapping) for point in entry.get("points") or [])
    )


def _table(document: Mapping[str, Any], name: str) -> Entry:
    rows = document["rows"]
    try:
        modes = list(dict.fromkeys(key.removesuffix("_us") for row in rows for key in row if key.endswith("_us")))
        points = [
            {"x": row["tokens"], "us": {mode: row[f"{mode}_us"] for mode in modes if row.get(f"{mode}_us") is not None}}
            for row in rows
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise MegatuneError(f"{name} is no table of latencies over tokens: {error!r}") from None
    return {
        "id": name,
        "family": "_vs_".join(modes),
        "figure_kind": "measured",
        "hardware": document.get("hardware"),
        "world_size": document.get("world"),
        "hidden_size": document.get("hidden"),
        "dtype": document.get("dtype"),
        "modes": modes,
        "x_unit": "tokens",
        "points": points,
        "threshold_chosen": None,
        "source": document.get("what", ""),
    }
