"""Published figures of what Megatune does not measure: the routed experts of a layer, and what whole servers reach.

They are imported: other people's machines, versions and methods. Each carries its source, and nothing is taken from a
part, a parallel size or a dtype that it was not measured on. ``experts.json`` names the figures that it leaves out, and
by which rule.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from megatune_kernels.models import Model
from megatune_planner.serving.bounds import Bounds

MEMORY_GBPS = {"H100 SXM": 3350, "H200 SXM": 4800, "B200": 7700, "B300 SXM": 7750, "GB200": 8000, "GB300": 8000}
"""Bandwidth of a GPU's memory, 10^9 bytes a second, by part. Source: pypi:aiconfigurator-core==0.12.0 (NVIDIA,
Apache-2.0), ``aiconfigurator_core/systems/*.yaml``, ``mem_bw``."""

EXPERT_PARTS = {"H100 SXM": "H100 SXM", "H200 SXM": "H200 SXM", "B200": "B200 SXM", "GB300": "GB300"}
"""How the table of experts spells a part."""

EXPERT_DTYPES = {
    "mxfp4": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
    "fp8_e4m3": ("fp8_block",),
    "int4": ("int4_wo",),
    "nvfp4": ("nvfp4",),
    "bfloat16": ("bfloat16",),
}
"""How it spells the dtype of a model's experts; several are kernels that a runtime chooses between."""


@dataclass(frozen=True)
class Experts:
    """Published latencies of one layer's routed experts on one rank."""

    us: dict[int, Bounds]
    """Microseconds by tokens, over routings and kernels."""
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Serving:
    """What somebody published of a server."""

    id: str
    model: str
    hardware: str | None
    """None where the source does not say."""
    ranks: int | None
    sequences: int
    quantity: str
    value: float
    source: str
    notes: str

    @property
    def step_us(self) -> float:
        """Time between two tokens of a user, µs."""
        if self.quantity == "milliseconds of a token":
            return 1000 * self.value
        users = self.sequences if self.quantity == "tokens a second in all" else 1
        return 1e6 * users / self.value


def published_serving() -> list[Serving]:
    return [Serving(**each) for each in _read("published.json")["entries"]]


def published_experts(model: Model, part: str, ranks: int) -> Experts | None:
    """Of this model's experts on this part at so many ranks; None where nobody published any.

    :param part: as a plan's gate names it.
    """
    width, local = model.latent or model.hidden, (model.moe_intermediate or 0) // ranks
    wanted = (EXPERT_PARTS.get(part), model.experts, model.top_k, width, local, ranks)
    dtypes = EXPERT_DTYPES.get((model.expert_dtype or "").casefold(), ())
    us: dict[int, Bounds] = {}
    sources = []
    for each in _read("experts.json")["entries"]:
        key = tuple(each[name] for name in ("hardware", "experts", "top_k", "width", "local", "ranks"))
        if key != wanted or each["dtype"] not in dtypes:
            continue
        sources.append(f"{each['source']} ({each['id']})")
        for tokens, (low, high) in each["us"].items():
            before = us.get(int(tokens), Bounds(low, high))
            us[int(tokens)] = Bounds(min(before.low, low), max(before.high, high))
    return Experts(dict(sorted(us.items())), tuple(sources)) if us else None


@cache
def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath(name).read_bytes())
    return found
