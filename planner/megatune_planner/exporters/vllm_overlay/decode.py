"""The latency-specialised decode: its tables are read when it is built, and each step asks it whether it serves.

All ranks of the group do the same. Whether the plan holds is agreed on between them, and a step is decided by what they
share: how many they are, and the tokens of the step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from . import serving
from .overlay import Group
from .overlay import Overlay
from .tables import Batches
from .tables import Differs
from .tables import takes

MODULE = "vllm.models.kimi_k3.nvidia.specialized_decode.runtime.decode"


class Decode(Group):
    name = "specialised decode"

    def __init__(self, overlay: Overlay, tables: Sequence[Batches]) -> None:
        super().__init__(overlay, tables)
        self.batches: Sequence[Batches] = tables
        self.all_batches = tables
        self.stock: frozenset[int] = frozenset()
        """Tokens at which a step is stock."""

    def wrap(self, module: ModuleType) -> None:
        """:raises Differs: when what is wrapped is not there."""
        decode = getattr(module, "SpecializedDecode", None)
        if not isinstance(decode, type):
            raise Differs(f"{MODULE} has no class SpecializedDecode")
        planned = takes(decode.__dict__.get("plan"), ("self", "positions", "intermediate_tensors"), "plan")
        made = takes(decode.__dict__.get("__init__"), ("self", "backbone", "config"), "SpecializedDecode")

        @functools.wraps(made)
        def make_with_plan(decoder: Any, *args: Any, **kwargs: Any) -> None:
            self.apply()
            made(decoder, *args, **kwargs)

        @functools.wraps(planned)
        def plan_with_rules(decoder: Any, positions: Any, intermediate_tensors: Any) -> Any:
            step = planned(decoder, positions, intermediate_tensors)
            return step if step is None or self.serves(positions.shape[0]) else None

        decode.__init__ = make_with_plan  # type: ignore[misc]
        decode.plan = plan_with_rules  # type: ignore[attr-defined]

    def prepare(self) -> str:
        world = serving.current_config().parallel_config.tensor_parallel_size
        self.tables = self.batches = [table for table in self.all_batches if table.entry["world"] == world]
        self.stock = self._stock(world)
        if not self.tables and not self.stock:
            raise Differs(f"the plan says nothing of {world} ranks")
        return f", stock at {sorted(self.stock)} tokens"

    def _stock(self, world: int) -> frozenset[int]:
        """Tokens at which a step is stock: where it won at every reduction of the step, and everywhere while the server
        admits contexts beyond one at which the measured error passed its limit."""
        shapes = self.overlay.document["stock_steps"].get(str(world), [])
        longest = serving.current_config().model_config.max_model_len
        beyond = any(shape["context_above"] is not None and longest > shape["context_above"] for shape in shapes)
        won = [{t for lo, hi in shape["won"] for t in range(lo, hi + 1)} for shape in shapes]
        everywhere = range(1, self.overlay.document["max_batch"] + 1)
        return frozenset(t for t in everywhere if beyond or (won and all(t in each for each in won)))

    def serves(self, tokens: int) -> bool:
        """Whether the specialised decode runs a step of so many tokens."""
        if not self.applied:
            return True
        stock = tokens in self.stock
        if stock:
            self.overlay.count("hit", f"step of {tokens} tokens: stock")
        else:
            for table in self.batches:
                self.overlay.count("hit" if table.decides(tokens) else "miss", f"{table.place} at {tokens} tokens")
        return not stock
