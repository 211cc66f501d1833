"""The low-latency GEMM of vLLM's stock path, whose tables are read when a model is built.

Every rank of the group changes them alike: what is computed by all of them, e.g. a projection whose weight each rank
holds whole, has to be the same to the bit.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .overlay import Group
from .overlay import Overlay
from .tables import Projections

MODULE = "vllm.models.kimi_k3.nvidia.low_latency_gemm"
ENABLE = "enable_kimi_k3_low_latency_gemm"
"""What a model calls when it is made."""


class Gemm(Group):
    name = "low-latency GEMM"

    def __init__(self, overlay: Overlay, tables: Sequence[Projections]) -> None:
        super().__init__(overlay, tables)
        self.projections = tables

    def wrap(self, module: ModuleType) -> None:
        """:raises Differs: when what is wrapped is not there."""
        enable = self.tables[0].function(ENABLE, ("module", "dtype"))
        build = self.tables[0].function("_build_plan", ("spec",))

        @functools.wraps(enable)
        def enable_with_plan(*args: Any, **kwargs: Any) -> Any:
            self.apply()
            return enable(*args, **kwargs)

        @functools.wraps(build)
        def build_and_count(spec: Any) -> Any:
            if self.applied:
                shape = next((table.made[id(spec)] for table in self.projections if id(spec) in table.made), None)
                self.overlay.count("miss" if shape is None else "hit", f"projection {spec.n}x{spec.k}")
            return build(spec)

        module._build_plan = build_and_count  # type: ignore[attr-defined]
        # Models that were imported before the plugin was loaded have the function by name already.
        for name, each in list(sys.modules.items()):
            if name.startswith("vllm.") and getattr(each, "__dict__", {}).get(ENABLE) is enable:
                setattr(each, ENABLE, enable_with_plan)
