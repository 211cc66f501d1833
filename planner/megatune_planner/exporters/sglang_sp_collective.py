"""Tables of the sequence-parallel collectives of Kimi K3 in SGLang, and a wheel that puts them in their place.

SGLang 0.5.23 looks for ``world={W},H={H},device_name={D}.json`` in a folder inside its package. A row serves from its
own number of tokens on, up to the next row's; the first one serves fewer, too. So every band is one row, at its first
tokens. A file without a collective leaves that one to NCCL: the overlay in the wheel therefore keeps SGLang's own rows
of what the plan says nothing of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import Band
from megatune_planner.crossovers import ITEM_BYTES
from megatune_planner.exporters import file_names
from megatune_planner.exporters import sglang_overlay
from megatune_planner.exporters import wheel
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.measured import notes
from megatune_planner.exporters.measured import require_links
from megatune_planner.exporters.measured import require_measured
from megatune_planner.exporters.reduction_markdown import heading
from megatune_planner.exporters.reduction_markdown import left_out
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.sp_collective_schema import STOCK
from megatune_planner.exporters.sp_collective_schema import STRATEGIES
from megatune_planner.exporters.sp_collective_schema import Nccl
from megatune_planner.exporters.sp_collective_schema import Pull
from megatune_planner.exporters.sp_collective_schema import Push
from megatune_planner.exporters.sp_collective_schema import row_of
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

MARKDOWN_FILE = "sglang_sp_collective.md"
DISTRIBUTION = "megatune-sglang-plan"
PACKAGE = "megatune_sglang_plan"

WORLDS = (4, 8, 16)
WIDTH = 7168
ARCHITECTURES = ("sm_100a", "sm_103a")
FIRST = "reduce_scatter"
"""The collective whose first row decides whether SGLang uses the table at all."""

RELIES_ON: dict[str, dict[str, object]] = {
    "sglang/kernels/ops/communication/sp_collective.py": {
        "_CONFIG_DIR": ANY,
        "_TABLES": ANY,
        "_device_name": ANY,
        "_table": ANY,
        "get_dispatch": ANY,
    },
    "sglang/srt/layers/communication/k3_sp_collective.py": {"_HIDDEN_SIZE": WIDTH, "_SUPPORTED_WORLD_SIZES": WORLDS},
    "sglang/srt/plugins/__init__.py": {"GENERAL_PLUGINS_GROUP": sglang_overlay.GROUP},
}
"""What the tables rest on in SGLang's source."""

NOTES = (
    f"pip install the wheel beside SGLang, on every node, or ranks wait for one another for ever: it is a plugin "
    f"({sglang_overlay.GROUP}), and each process says first thing what it put in place. {sglang_overlay.SWITCH}=off "
    f"leaves it out, pip uninstall {DISTRIBUTION} takes it back.",
    "The tables beside it are what it holds. One that is copied over a table of SGLang's own takes away the rows that "
    "the plan says nothing of, such as those of fused attention residuals; the wheel keeps them.",
    "SGLang reads them on SM100 and SM103 with MegaMoE or DeepEP and a multicast-capable all-reduce; with "
    "SGLANG_K3_SP_ATTN_RES its fused collectives come first.",
    "A push whose shard is larger than a slot is served by the next row that pulls, or writes directly, else by NCCL.",
)


@dataclass(frozen=True)
class Rows:
    """The rows of one collective, each from its first tokens on."""

    collective: str
    shape: ShapePlan
    rows: Mapping[int, Push | Pull | Nccl]
    bands: Sequence[Band]
    """One for each row."""


def files(plan: Plan, exporter: str, runtime: Runtime) -> dict[str, str | bytes]:
    """One table for each world, the wheel that holds them, and the same to read.

    :raises MegatuneError: when the plan has no world whose table SGLang would read.
    """
    hardware = plan.content.target.hardware
    if hardware["arch"] not in ARCHITECTURES:
        raise MegatuneError(
            f"{exporter}: SGLang's collectives of Kimi K3 run on {' and '.join(ARCHITECTURES)}, and the plan holds for "
            f"{hardware['arch']}"
        )
    shapes = [
        (operator.name, operator.baselines, shape)
        for operator in plan.content.operators
        if operator.name in STRATEGIES
        for shape in operator.shapes
    ]
    require_measured(plan, [shape for _, _, shape in shapes], exporter)
    require_links(plan, exporter)
    by_world: dict[int, list[Rows]] = {}
    skipped: list[str] = []
    for name, baselines, shape in shapes:
        try:
            by_world.setdefault(shape.world, []).append(_rows(name, baselines, shape, hardware["sms"]))
        except MegatuneError as error:
            skipped.append(f"{_label(name, shape)}: {error}")
    worlds = {}
    for world, found in sorted(by_world.items()):
        if FIRST in [rows.collective for rows in found]:
            worlds[world] = sorted(found, key=lambda rows: list(STRATEGIES).index(rows.collective))
        elif found:
            skipped.append(f"world {world}: SGLang reads no table without rows of {FIRST}")
    if not worlds:
        raise MegatuneError(f"{exporter}: no world of the plan has a table: {'; '.join(skipped)}")
    device = file_names.device(hardware["gpu"].replace(" ", "_").replace("/", "_"))
    tables = {f"world={w},H={WIDTH},device_name={device}.json": _text(plan, found) for w, found in worlds.items()}
    for (world, found), text in zip(worlds.items(), tables.values(), strict=True):
        _check(text, world, found)
    sources = {
        f"{PACKAGE}/__init__.py": Path(sglang_overlay.__file__).read_text(encoding="utf-8"),
        **{f"{PACKAGE}/{name}": text for name, text in tables.items()},
    }
    version = wheel.version(runtime.version, plan.digest, sources)
    built = wheel.build(
        DISTRIBUTION,
        version,
        summary=f"Megatune plan {plan.digest} for {runtime.name} {runtime.version}",
        requires_python=">=3.10",
        files=sources,
        entry_points={sglang_overlay.GROUP: {PACKAGE: f"{PACKAGE}:register"}},
    )
    lines = _lines(plan, runtime, worlds, skipped)
    return {**tables, wheel.file_name(DISTRIBUTION, version): built, MARKDOWN_FILE: "\n".join(lines) + "\n"}


def dispatched(rows: Mapping[int, Any], tokens: int) -> Any:
    """What SGLang finds: the row of the largest key that is no larger, else the first."""
    return rows[max((key for key in rows if key <= tokens), default=min(rows))]


def _rows(collective: str, baselines: Sequence[str], shape: ShapePlan, sms: int) -> Rows:
    if shape.world not in WORLDS:
        raise MegatuneError(f"SGLang has it at {', '.join(map(str, WORLDS))} ranks")
    if shape.dims.get("width") != WIDTH:
        raise MegatuneError(f"SGLang has it at width {WIDTH}")
    if shape.dtype != "bf16":
        raise MegatuneError("SGLang has it in bf16")
    if STOCK not in baselines:
        raise MegatuneError(f"SGLang falls back to {STOCK}, which the plan has no baseline of")
    # Each rank has as many tokens as the others, so that there are never fewer than ranks.
    bands = [band for band in shape.bands if band.tokens_hi is None or band.tokens_hi >= shape.world]
    rows = {max(band.tokens_lo, shape.world): row_of(collective, band.decision, sms) for band in bands}
    if all(isinstance(row, Nccl) for row in rows.values()):
        raise MegatuneError("stock serves any number of tokens")
    if collective == FIRST and isinstance(rows[min(rows)], Nccl):
        raise MegatuneError(
            f"{STOCK} serves the fewest tokens, and SGLang reads no table that begins so: measure from {shape.world} "
            "tokens on, or leave it"
        )
    return Rows(collective, shape, rows, bands)


def _text(plan: Plan, found: Sequence[Rows]) -> str:
    content = plan.content
    table = {
        "source": {"device": content.target.hardware["gpu"], "plan": content.name, "digest": plan.digest},
        "selection": {
            "rule": "the largest number of tokens, of all ranks together, that is not above the workload's",
            "fallback": STOCK,
            "note": "bands of a Megatune plan, each from its first tokens on",
        },
        "configs": {
            rows.collective: {str(tokens): row.model_dump() for tokens, row in rows.rows.items()} for rows in found
        },
    }
    return json.dumps(table, indent=2) + "\n"


def _check(text: str, world: int, found: Sequence[Rows]) -> None:
    """Read the file as SGLang does, at the ends of every band.

    :raises MegatuneError: naming the first number of tokens that would get another row.
    """
    configs = json.loads(text)["configs"]
    for rows in found:
        read = {int(key): row for key, row in configs[rows.collective].items()}
        for band in rows.bands:
            for tokens in (max(band.tokens_lo, world), band.tokens_hi or 2 * band.tokens_lo):
                if dispatched(read, tokens) != rows.rows[max(band.tokens_lo, world)].model_dump():
                    raise MegatuneError(f"the table would give {tokens} tokens another row than the plan does")


def _label(collective: str, shape: ShapePlan) -> str:
    return f"{collective} {shape.shape} {shape.dtype}, world {shape.world}"


def _lines(plan: Plan, runtime: Runtime, worlds: Mapping[int, Sequence[Rows]], skipped: Sequence[str]) -> Iterator[str]:
    own = notes([rows.shape for found in worlds.values() for rows in found], NOTES)
    yield from heading("Sequence-parallel collectives", runtime, PlanSource.of(plan), own)
    for world, found in worlds.items():
        for rows in found:
            yield ""
            yield f"## World {world}: {rows.collective}"
            yield ""
            yield "| tokens from | row | slot, bytes | measured at | µs | fastest baseline, µs | provenance |"
            yield "|---:|---|---:|---|---|---|---|"
            for (tokens, row), band in zip(rows.rows.items(), rows.bands, strict=True):
                yield _line(tokens, row, band, rows.shape)
    yield from left_out(skipped)


def _line(tokens: int, row: Push | Pull | Nccl, band: Band, shape: ShapePlan) -> str:
    # A slot holds one rank's shard, at the most tokens of the band.
    shard = -(-(band.tokens_hi or tokens) // shape.world) * WIDTH * ITEM_BYTES[shape.dtype]
    cells = (
        str(tokens),
        " ".join(f"{value}" if name == "strategy" else f"{name}={value}" for name, value in row.model_dump().items()),
        str(shard) if isinstance(row, Push) else "-",
        ", ".join(str(point.tokens) for point in band.points) or "-",
        ", ".join(f"{point.latency.median_us:.2f}" for point in band.points),
        ", ".join(f"{point.baseline_latency.median_us:.2f} {point.baseline}" for point in band.points),
        ", ".join(sorted({each for point in band.points for each in point.provenance})),
    )
    return f"| {' | '.join(cells)} |"
