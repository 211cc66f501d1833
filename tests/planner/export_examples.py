"""What the exporters make of the examples, as kept under ``tests/golden``."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

from moe_examples import example_moe_plan
from plan_examples import example_plan
from prefetch_examples import example_prefetch_plan
from reduction_examples import example_reduction_plan
from sp_examples import example_collectives_plan

from megatune_planner.exporters.base import exporters
from megatune_planner.exporters.flashinfer_routes import LOADER_FILE
from megatune_planner.exporters.json_plan import READER_FILE
from megatune_planner.plan import Plan

OF_REDUCTIONS = ("flashinfer", "sglang", "vllm-allreduce", "vllm-specialized-decode")
OF_EXPERTS = ("sglang-moe-table", "vllm-moe-table")
COPIES = (READER_FILE, LOADER_FILE)
"""Files that are sources of ours, word for word."""


def plans_by_exporter(directory: Path) -> dict[str, Plan]:
    """For each exporter a plan of what it expresses."""
    plan, reductions, experts = example_plan(directory), example_reduction_plan(directory), example_moe_plan(directory)
    others = dict.fromkeys(OF_REDUCTIONS, reductions) | dict.fromkeys(OF_EXPERTS, experts)
    others["sglang"] = example_collectives_plan(directory)
    return {name: others.get(name, plan) for name in exporters()}


def example_exports(directory: Path) -> dict[str, str]:
    """Text by path under ``tests/golden``; copies are left out, and of a wheel all but what the plan changes."""
    found: dict[str, str] = {}
    for name, plan in plans_by_exporter(directory).items():
        for file, content in exporters()[name].files(plan).items():
            if isinstance(content, bytes):
                with zipfile.ZipFile(io.BytesIO(content)) as wheel:
                    for path in wheel.namelist():
                        if path.endswith("/overlay.json"):
                            found[f"{name}/overlay.json"] = wheel.read(path).decode()
            elif file not in COPIES:
                # The version and the hash of a wheel change with its sources.
                versioned = re.sub(r"\.r[0-9a-f]{8}-py3", ".rCONTENTS-py3", content)
                found[f"{name}/{file}"] = re.sub(r"SHA-256 `[0-9a-f]{64}`", "SHA-256 `…`", versioned)
    decode = exporters()["vllm-specialized-decode"]
    prefetch = decode.files(example_prefetch_plan(directory))
    return found | {f"{decode.name}/prefetch/{file}": str(text) for file, text in prefetch.items()}
