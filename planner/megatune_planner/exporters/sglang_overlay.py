"""Puts the tables of a Megatune plan in the place of SGLang's own, where SGLang loads its plugins.

Needs the standard library and SGLang 0.5.23. Where anything differs it changes nothing and says why. Rows of SGLang's
that a table has no collective for stay as they are.
"""

from __future__ import annotations

import json
import logging
import os
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

GROUP = "sglang.srt.plugins"
SWITCH = "MEGATUNE_PLAN"
RELEASE = "0.5.23"
MODULE = "sglang.kernels.ops.communication.sp_collective"

logger = logging.getLogger(__name__)


def register() -> None:
    """The entry point. Does the same however often it is called, and never raises into the engine."""
    try:
        _register()
    except Exception as error:  # noqa: BLE001
        logger.warning("Megatune: SGLang keeps its own tables: %s: %s", type(error).__name__, error)


def _register() -> None:
    switch = os.environ.get(SWITCH, "on")
    if switch != "on":
        logger.warning("Megatune: SGLang keeps its own tables, %s is %s", SWITCH, switch)
        return
    found = version("sglang")
    if found.split("+")[0] != RELEASE:
        logger.warning("Megatune: SGLang %s keeps its own tables, the plan is for %s", found, RELEASE)
        return
    module = import_module(MODULE)
    tables, folder = getattr(module, "_TABLES", None), getattr(module, "_CONFIG_DIR", None)
    if not isinstance(tables, dict) or not isinstance(folder, str):
        logger.warning("Megatune: SGLang keeps its own tables, %s has no _TABLES or no _CONFIG_DIR", MODULE)
        return
    merged = {}
    for file in sorted(Path(__file__).parent.glob("world=*.json")):
        table = json.loads(file.read_text(encoding="utf-8"))
        # Joined as SGLang joins it: the text is the key.
        path = os.path.join(folder, file.name)  # noqa: PTH118
        serves = f"plan {table['source']['digest']} serves {' and '.join(table['configs'])} of {file.name}"
        merged[path] = _merged(table, Path(path)), serves
    # All of them, or none where one cannot be read.
    for path, (rows, serves) in merged.items():
        tables[path] = rows
        # No warning, but SGLang loads plugins before it sets up its log, and what is less is lost then.
        logger.warning("Megatune: %s", serves)


def _merged(table: dict[str, Any], own: Path) -> dict[str, Any]:
    if not own.is_file():
        return table
    theirs = json.loads(own.read_text(encoding="utf-8"))
    return {**theirs, **table, "configs": {**theirs["configs"], **table["configs"]}}
