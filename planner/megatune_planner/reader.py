"""Reads a plan where it is served. Needs the standard library alone and imports nothing beside it: copy this file.

    reader = load("plan.json", target={"hardware": {...}, "toolchain": {...}})
    decision = reader.select("projection", "k=7168,n=6288", tokens)
    if decision is None:
        ...  # stock: what serves without a plan

``load`` checks the file, its digest and the target once, when the server starts, and may raise there. ``select`` runs
in every step: it costs less than a microsecond, never raises, and answers None, stock, for whatever it does not know.
The same plan, target and arguments give the same decision on every rank.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from typing import NamedTuple

FORMAT = "megatune-plan"
SCHEMA_VERSION = 2
DIGEST_LENGTH = 16


class PlanError(ValueError):
    """The plan cannot be used: one line that says why. Serve stock, or stop and mend the file."""


class Decision(NamedTuple):
    """What to run instead of stock."""

    variant: str
    params: Mapping[str, Any]
    """Read-only."""
    config: str
    """Digest of variant and params."""
    workspace_bytes: int
    """Of every rank, beside the operands."""
    workspace_alignment_bytes: int
    """Of that memory's address."""
    alignment_bytes: int
    """Of every operand's address."""
    resident: bool
    """Whether all blocks have to be on the GPU at once."""
    measured: bool
    """Whether this config was measured at exactly these tokens; False where the plan predicts."""


class _Table(NamedTuple):
    """Decisions of one shape. The one at index i holds from ``starts[i - 1]`` up to below ``starts[i]``."""

    starts: tuple[int, ...]
    decisions: tuple[Decision | None, ...]
    bands: tuple[Mapping[str, Any], ...]
    crossovers: tuple[Mapping[str, Any], ...]


class Reader:
    """A plan in memory. Immutable, and safe to share between threads.

    ``reason`` is empty where the plan holds for the target; otherwise it says why every answer is stock.
    """

    def __init__(self, digest: str, tables: Mapping[tuple[Any, ...], _Table], reason: str) -> None:
        self.digest = digest
        self.reason = reason
        self._known: dict[tuple[Any, ...], _Table] = dict(tables)
        self._tables: dict[tuple[Any, ...], _Table] = {} if reason else self._known

    def select(
        self, operator: str, shape: str, tokens: int, dtype: str = "bf16", world: int = 1, routing: str = "none"
    ) -> Decision | None:
        """The decision for one launch, or None for stock.

        ``shape`` is the operator's dims sorted by name, as ``shape_of`` spells them. Never raises.
        """
        try:
            table = self._tables[operator, shape, dtype, world, routing]
            return table.decisions[bisect_right(table.starts, tokens)]
        except (KeyError, TypeError):
            return None

    def crossovers(
        self, operator: str, shape: str, dtype: str = "bf16", world: int = 1, routing: str = "none"
    ) -> tuple[Mapping[str, Any], ...]:
        """Where variants give way to one another at one shape, as the plan has it: with units, in tokens and bytes.

        They hold at this world and width alone. Empty where the plan does not hold. Not for the hot path.
        """
        table = self._tables.get((operator, shape, dtype, world, routing))
        return () if table is None else table.crossovers

    def explain(
        self, operator: str, shape: str, tokens: int, dtype: str = "bf16", world: int = 1, routing: str = "none"
    ) -> str:
        """One line: what ``select`` answers for the same arguments, and why. Not for the hot path."""
        if self.reason:
            return f"stock: {self.reason}"
        try:
            table = self._known.get((operator, shape, dtype, world, routing))
            if table is None:
                return f"stock: {self._missing(operator, shape, dtype, world, routing)}"
            index = bisect_right(table.starts, tokens)
        except TypeError as error:
            return f"stock: not a key of a plan: {error}"
        if index == 0:
            return f"stock: {tokens} tokens is not a decode step"
        decision = table.decisions[index]
        band = next(band for band in reversed(table.bands) if band["tokens_lo"] <= table.starts[index - 1])
        if decision is None:
            return f"stock: {band['reason']}"
        params = "".join(f" {name}={value}" for name, value in decision.params.items())
        return f"{decision.variant}{params}: {'measured' if decision.measured else 'predicted'}, {band['reason']}"

    def _missing(self, operator: str, shape: str, dtype: str, world: int, routing: str) -> str:
        if not any(key[0] == operator for key in self._known):
            return f"the plan has no operator {operator!r}"
        if not any(key[:2] == (operator, shape) for key in self._known):
            return f"the plan has no shape {shape!r} of {operator}"
        return f"the plan does not hold for dtype {dtype!r}, world {world!r}, routing {routing!r} of {operator} {shape}"


def shape_of(dims: Mapping[str, int]) -> str:
    """The key of a shape: dims in elements, sorted by name, e.g. ``k=7168,n=6288``."""
    return ",".join(f"{name}={dims[name]}" for name in sorted(dims))


def load(
    path_or_text: str | os.PathLike[str], *, target: Mapping[str, Any] | None, workspace_bytes: int | None = None
) -> Reader:
    """Read a plan and check it once.

    :param path_or_text: path of a plan file, or its text (which begins with a brace).
    :param target: what serves, as ``{"hardware": {...}, "toolchain": {...}}`` with the fields of the plan's own
        target; None where the caller vouches that the plan was made for this machine. Where a field differs, every
        answer of the reader is stock, and ``reason`` says which field.
    :param workspace_bytes: what every rank holds for its peers to write into; None where the caller allocates what
        the decisions ask for. A band whose config needs more is stock.
    :raises PlanError: when the file cannot be read, is no plan, has another schema version, or was changed after its
        digest was taken.
    """
    plan = _parse(path_or_text)
    content = plan["content"]
    try:
        tables = {
            (operator["name"], shape["shape"], shape["dtype"], shape["world"], shape["routing"]): _table(
                shape, workspace_bytes
            )
            for operator in content["operators"]
            for shape in operator["shapes"]
        }
        reason = _difference(content["target"], target)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"not a plan of schema version {SCHEMA_VERSION}: {error!r}") from None
    return Reader(plan["digest"], tables, reason)


def _parse(path_or_text: str | os.PathLike[str]) -> dict[str, Any]:
    text = os.fspath(path_or_text)
    if not text.lstrip().startswith("{"):
        try:
            with open(text, encoding="utf-8") as file:  # noqa: PTH123  (an embedded file stays plain)
                text = file.read()
        except (OSError, ValueError) as error:
            raise PlanError(f"cannot read the plan: {getattr(error, 'strerror', None) or error}") from None
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the plan is not JSON: {error}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise PlanError(f"not a plan: the field 'format' is not {FORMAT!r}")
    if plan.get("schema_version") != SCHEMA_VERSION:
        raise PlanError(
            f"the plan has schema version {plan.get('schema_version')!r}, this reader knows {SCHEMA_VERSION}: "
            "copy the reader that was exported with the plan"
        )
    if not isinstance(plan.get("content"), dict):
        raise PlanError("not a plan: it has no content")
    canonical = json.dumps(plan["content"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if plan.get("digest") != hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_LENGTH]:
        raise PlanError("the plan was changed after its digest was taken: export it again")
    return plan


def _key(shape: Mapping[str, Any]) -> tuple[Any, ...]:
    return (shape["shape"], shape["dtype"], shape["world"], shape["routing"])


def _table(shape: Mapping[str, Any], workspace_bytes: int | None) -> _Table:
    """Cut each band at its measured tokens, so that the answer can say which it is."""
    bands = tuple(_fitting(band, workspace_bytes) for band in shape["bands"])
    starts: list[int] = []
    decisions: list[Decision | None] = [None]
    expected = 1
    for band in bands:
        lo, hi = band["tokens_lo"], band["tokens_hi"]
        if lo != expected:
            raise ValueError(f"bands of {shape['shape']} do not tile: {lo} follows {expected - 1}")
        measured = {point["tokens"] for point in band["points"]}
        cuts = {lo, *measured, *(tokens + 1 for tokens in measured)}
        for start in sorted(cut for cut in cuts if hi is None or cut <= hi):
            starts.append(start)
            decisions.append(_decision(band["decision"], start in measured))
        expected = -1 if hi is None else hi + 1
    if expected != -1:
        raise ValueError(f"bands of {shape['shape']} have no last one")
    return _Table(tuple(starts), tuple(decisions), bands, tuple(map(_with_units, shape["crossovers"])))


def _with_units(crossover: Mapping[str, Any]) -> Mapping[str, Any]:
    """The crossover, read-only. A limit without its unit is worse than none: tokens, bytes and elements look alike."""
    traffic = crossover["traffic"]
    if crossover["unit"] != "tokens" or (traffic is not None and traffic["unit"] != "bytes"):
        raise ValueError(f"a crossover of {crossover['below']} and {crossover['above']} is in an unknown unit")
    return MappingProxyType({**crossover, "traffic": None if traffic is None else MappingProxyType(dict(traffic))})


def _fitting(band: Mapping[str, Any], workspace_bytes: int | None) -> Mapping[str, Any]:
    """The band, or the same as stock where its config needs more memory than there is."""
    needed = band["decision"].get("workspace_bytes", 0)
    if workspace_bytes is None or needed <= workspace_bytes:
        return band
    reason = f"{band['decision']['variant']} needs {needed} bytes of workspace, and there are {workspace_bytes}"
    return {**band, "decision": {"kind": "stock"}, "reason": reason}


def _decision(decision: Mapping[str, Any], measured: bool) -> Decision | None:
    if decision["kind"] == "stock":
        return None
    return Decision(
        decision["variant"],
        MappingProxyType(dict(decision["params"])),
        decision["config"],
        decision["workspace_bytes"],
        decision["workspace_alignment_bytes"],
        decision["alignment_bytes"],
        decision["resident"],
        measured,
    )


def _difference(planned: Mapping[str, Any], here: Mapping[str, Any] | None) -> str:
    if here is None:
        return ""
    for part in ("hardware", "toolchain"):
        found = here.get(part)
        for name, value in planned[part].items():
            actual = found.get(name) if isinstance(found, Mapping) else None
            if actual != value:
                return f"the plan was measured with {part}.{name} {value!r}, here it is {actual!r}"
    return ""
