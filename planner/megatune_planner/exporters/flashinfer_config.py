"""Makes FlashInfer's config of the routes in ``flashinfer.json``, for copying beside them.

``create_allreduce_fusion_workspace(backend="mnnvl-cutedsl", apply_rms_norm=False, config=load(), …)``. Where it runs it
needs FlashInfer and torch, and nothing else.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("flashinfer.json")
FORMAT = "megatune-flashinfer-routes"
SCHEMA_VERSION = 1


def load(path: Path = FILE) -> Any:
    """FlashInfer's ``MNNVLCuteDSLConfig``.

    :raises ValueError: when the file is of another format, or for another version of FlashInfer than is installed.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    if value.get("format") != FORMAT or value.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path} does not hold routes of schema version {SCHEMA_VERSION}")
    runtime = value["runtime"]
    installed = version(runtime["name"])
    if installed.split("+")[0] != runtime["version"]:
        raise ValueError(f"{path} is for {runtime['name']} {runtime['version']}, and {installed} is installed")
    package = import_module("flashinfer.comm.mnnvl_cutedsl")
    return package.MNNVLCuteDSLConfig(
        profiles=tuple(_profile(package, profile) for profile in value["profiles"]),
        applies_rms_norm=value["applies_rms_norm"],
    )


def _profile(package: Any, value: dict[str, Any]) -> Any:
    return package.StaticProfile(
        tp_size=value["tp_size"],
        hidden_size=value["hidden_size"],
        top_k=value["top_k"],
        dtype=getattr(import_module("torch"), value["dtype"]),
        finalize_routes=_dispatch(package, value["finalize_routes"]),
        all_reduce_routes=_dispatch(package, value["all_reduce_routes"]),
        compute_capability=tuple(value["compute_capability"]),
    )


def _dispatch(package: Any, value: dict[str, Any]) -> Any:
    return package.MRangeDispatch(
        upper_bounds=tuple(value["upper_bounds"]),
        targets=tuple(
            package.KernelTarget(
                protocol=package.ProtocolKind(target["protocol"]),
                preset=getattr(import_module(f"{package.__name__}.kernel_{target['protocol']}"), target["preset"]),
            )
            for target in value["targets"]
        ),
    )
