"""What a plan changes in vLLM: the package of the wheel that ``megatune export --to vllm-plugin`` writes.

vLLM calls ``register`` in each of its processes. Nothing happens then but that two modules are watched for; the tables
change when the first function that reads them is called, in the process that loads the model. Each group of tables
changes as a whole, or not at all and a line in vLLM's log says why. ``MEGATUNE_PLAN=off`` switches it off, and ``pip
uninstall`` removes it. It needs the standard library, and vLLM and torch, which are there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from . import decode
from . import gemm
from .imports import after_import
from .overlay import Group
from .overlay import Overlay
from .overlay import logger
from .tables import Batches
from .tables import Projections

SWITCH = "MEGATUNE_PLAN"
"""Environment variable: ``off`` leaves vLLM as it is."""

_overlay: Overlay | None = None


def register() -> None:
    """What vLLM calls; a second call does nothing. Never raises."""
    global _overlay
    if _overlay is not None:
        return
    try:
        switch = os.environ.get(SWITCH, "on")
        if switch != "on":
            why = "" if switch == "off" else ", which is neither on nor off"
            logger.log(logging.WARNING if why else logging.INFO, "megatune plan: unused, %s=%s%s", SWITCH, switch, why)
            return
        _overlay = Overlay(Path(__file__).parent)
        _watch(_overlay)
    except Exception as error:  # noqa: BLE001  (nothing of ours may stop the engine)
        line = " ".join(str(error).split())
        logger.warning("megatune plan: changed nothing: %s: %s", type(error).__name__, line)


def status() -> dict[str, Any]:
    """What happened in this process: the plan's digest, what changed or why nothing did, hits and misses."""
    return {"plan": None, "outcome": {}, "counts": {}} if _overlay is None else _overlay.status()


def _watch(overlay: Overlay) -> None:
    runtime = overlay.document["runtime"]
    installed = version(runtime["name"])
    if installed.split("+")[0] != runtime["version"]:
        overlay.settle(
            "all tables",
            f"changed nothing: {runtime['name']} {installed} is installed, and the tables are those of "
            f"{runtime['version']}: check the plan against it and export it again",
            warning=True,
        )
        return
    projections = [table for table in overlay.tables if isinstance(table, Projections)]
    batches = [table for table in overlay.tables if isinstance(table, Batches)]
    if projections:
        group = gemm.Gemm(overlay, projections)
        after_import(gemm.MODULE, _guarded(group, group.wrap))
    if batches or overlay.document["stock_steps"]:
        specialised = decode.Decode(overlay, batches)
        after_import(decode.MODULE, _guarded(specialised, specialised.wrap))


def _guarded(group: Group, wrap: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def wrap_or_say(module: ModuleType) -> None:
        try:
            wrap(module)
        except Exception as error:  # noqa: BLE001
            group.refuse(error)

    return wrap_or_say
