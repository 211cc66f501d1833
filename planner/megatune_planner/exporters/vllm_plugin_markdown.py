"""``vllm_plugin.md``: what a wheel of the exporter ``vllm-plugin`` changes, and how it is installed and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator

from megatune_planner.exporters.reduction_markdown import heading
from megatune_planner.exporters.reduction_markdown import left_out
from megatune_planner.exporters.vllm_overlay import SWITCH
from megatune_planner.exporters.vllm_overlay.overlay import CONFIG_KEY
from megatune_planner.exporters.vllm_overlay.overlay import STATUS_FOLDER
from megatune_planner.exporters.vllm_overlay.serving import KEY
from megatune_planner.exporters.vllm_overlay.serving import WAIT
from megatune_planner.exporters.vllm_plugin_schema import Batches
from megatune_planner.exporters.vllm_plugin_schema import Overlay
from megatune_planner.exporters.vllm_plugin_schema import Projections

NOTES = (
    "Install it wherever a process of the server runs, on every node. Where it is missing on one rank, the others wait "
    "up to five minutes for it, at most half of what vLLM's collectives wait, and then none changes anything.",
    "It changes nothing, and a line in the log says why, where the version of vLLM, the machine, the deployment or a "
    "single name or value that it would touch is not what the plan was made for.",
    "Where the plan says stock, a table stays as vLLM ships it, and dsv3_fused_a keeps its place wherever it was not "
    "measured.",
    "What a step does is decided while its graph is captured, by the number of ranks and the step's tokens alone.",
)


def render(overlay: Overlay, wheel: str, sha256: str, distribution: str) -> str:
    """
    :param wheel: name of the file.
    :param sha256: of the file.
    """
    return "\n".join(_lines(overlay, wheel, sha256, distribution)) + "\n"


def _lines(overlay: Overlay, wheel: str, sha256: str, distribution: str) -> Iterator[str]:
    yield from heading("Plugin", overlay.runtime, overlay.plan, NOTES)
    config = json.dumps({CONFIG_KEY: overlay.plan.digest})
    yield ""
    yield "| to | do |"
    yield "|---|---|"
    yield f"| install | `pip install --no-deps {wheel}` |"
    yield f"| insist on this plan | `vllm serve … --additional-config '{config}'`: any other plan changes nothing |"
    yield f"| switch it off | `{SWITCH}=off` |"
    yield f"| know the wheel again | SHA-256 `{sha256}`, e.g. with pip's `--require-hashes` |"
    yield f"| take a signed plan alone | `{KEY}=KEY`: the public key, 64 hexadecimal digits or a file |"
    yield f"| wait for other ranks | `{WAIT}=SECONDS` |"
    yield f"| see hits and misses | `{STATUS_FOLDER}=FOLDER`: a JSON file a process |"
    yield f"| go back | `pip uninstall {distribution}` |"
    yield ""
    yield "## What changes"
    for table in overlay.tables:
        yield ""
        yield from _projections(table) if isinstance(table, Projections) else _batches(table)
    for world, shapes in overlay.stock_steps.items():
        yield ""
        yield f"Steps of {world} ranks are stock where stock won at all of these, or contexts may be too long for one:"
        yield ""
        for shape in shapes:
            won = ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in shape.won) or "none"
            context = "" if shape.context_above is None else f"; contexts of more than {shape.context_above} tokens"
            yield f"- {shape.shape}: {won} tokens{context}"
    yield from left_out(overlay.skipped)


def _batches(table: Batches) -> Iterator[str]:
    yield f"`{table.module}.{table.table}[{table.key}]`: `{table.shipped!r}` becomes `{table.value!r}`"


def _projections(table: Projections) -> Iterator[str]:
    yield f"`{table.module}.{table.table}`:"
    yield ""
    yield "| N x K | configs at tokens |"
    yield "|---|---|"
    for shape in table.shapes:
        yield f"| {shape.n}x{shape.k} | {', '.join(str(config.num_rows) for config in shape.configs)} |"
