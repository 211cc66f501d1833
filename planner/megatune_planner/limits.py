"""How fast a launch could be at best: what it must move and compute, at the rated speed of its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatune_kernels.operator import Cost

SOURCE = "aiconfigurator-core 0.12.0 (NVIDIA), systems/*.yaml: mem_bw, intra_node_bw, bfloat16_tc_flops (dense)"
"""Of all of ``RATED``: https://pypi.org/project/aiconfigurator-core/0.12.0/."""
LINKS = 18
"""NVLinks of each of these GPUs, which carry ``links_bytes_a_us`` together. Sources: "18x 4th Gen NVLink, 900GB/s" in
https://github.com/mlcommons/inference_results_v4.1/blob/main/closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json for
Hopper, and NV18 between GB200s of fifth-generation NVLink in
https://github.com/mlcommons/inference_results_v6.1/blob/main/closed/Crusoe/systems/GB200-NVL72_GB200-186GB_aarch64x16_Dynamo.json
for Blackwell."""


@dataclass(frozen=True)
class Rated:
    """Speeds of a GPU as its maker states them. No kernel reaches them: on an H200 a copy was measured at 89 % of the
    memory's (``copy_bytes_a_us`` of the shipped recording ``kimi-k3-h200``)."""

    memory_bytes_a_us: float
    links_bytes_a_us: float
    """That a GPU sends over all its NVLinks together, in one direction."""
    flops_a_us: float


RATED = {
    "H100": Rated(3.35e6, 450e3, 989e6),
    "H200": Rated(4.8e6, 450e3, 989e6),
    "B200": Rated(7.7e6, 900e3, 2250e6),
    "GB200": Rated(8.0e6, 900e3, 2500e6),
    "B300": Rated(7.75e6, 900e3, 2250e6),
    "GB300": Rated(8.0e6, 900e3, 2500e6),
}
"""By the word of the GPU's name that says which it is: SXM parts and superchips. Others, and slices of a GPU, are not
known."""
SLOWER = frozenset({"PCIe", "NVL", "MIG"})
"""Words of a name that say that it is another part, or a slice of one."""


@dataclass(frozen=True)
class Floor:
    """The least time of a launch, and what it waits for."""

    us: float
    bound: str
    """``memory``, ``links`` or ``compute``."""


def rated(hardware: Mapping[str, Any]) -> Rated | None:
    """What is known of a target's GPU; None for one that is not in the table.

    :param hardware: the fields of ``megatune_kernels.target.Hardware``.
    """
    words = str(hardware.get("gpu", "")).replace("-", " ").split()
    if SLOWER.intersection(words):
        return None
    return next((RATED[word] for word in words if word in RATED), None)


def links_of(hardware: Mapping[str, Any]) -> int | None:
    """How many NVLinks lead from each GPU of a group to its peers, e.g. 18 of ``nvlink-18``; None where there are none,
    or nothing is known of them."""
    kind, _, count = str(hardware.get("links", "")).partition("-")
    return int(count) if kind == "nvlink" and count.isdecimal() and int(count) else None


def floor(cost: Cost, speeds: Rated, links: int | None, *, cached: bool = False) -> Floor | None:
    """The least time for what a launch must move and compute; None where that is nothing that can be told.

    :param links: that a GPU sends over; None where they are not known, and the launch must not send.
    :param cached: whether the operands lie in the L2, so that memory bounds nothing.
    """
    times = {
        "memory": 0.0 if cached else cost.memory_bytes / speeds.memory_bytes_a_us,
        "links": cost.link_bytes * LINKS / (speeds.links_bytes_a_us * links) if links else 0.0,
        "compute": cost.flops / speeds.flops_a_us,
    }
    bound = max(times, key=times.__getitem__)
    return Floor(times[bound], bound) if times[bound] > 0 else None
