"""The kinds of tables that a plan changes: what has to be there, how a table changes in place, and how it is put back.

Every check is made on the engine's own objects in memory. Where anything is not as the plan's exporter knew it, nothing
changes.
"""

from __future__ import annotations

import inspect
from abc import ABC
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class Differs(Exception):
    """What is there is not what the plan was exported for: one line."""


def takes(found: Any, parameters: tuple[str, ...], name: str) -> Any:
    """The function itself.

    :raises Differs: when it is none, or has other parameters.
    """
    code = getattr(found, "__code__", None)
    if code is None or code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] != parameters:
        raise Differs(f"{name} is no function of {', '.join(parameters)}")
    return found


def _nothing() -> None:
    """Stands for a function that is not there: it takes nothing."""


class Table(ABC):
    """One entry of the overlay's ``tables``."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.name: str = entry["table"]

    @property
    def module(self) -> ModuleType:
        return import_module(self.entry["module"])

    @property
    def place(self) -> str:
        return f"{self.entry['module'].rpartition('.')[2]}.{self.name}"

    def function(self, name: str, parameters: tuple[str, ...]) -> Any:
        """The module's own function, whatever the overlay has wrapped it in.

        :raises Differs: when the module has no such function of these parameters.
        """
        return takes(inspect.unwrap(getattr(self.module, name, _nothing)), parameters, name)

    def dictionary(self) -> dict[Any, Any]:
        """:raises Differs: when the module has no dict of the table's name."""
        found = getattr(self.module, self.name, None)
        if type(found) is not dict:
            raise Differs(f"{self.entry['module']} has no dict {self.name}")
        return found

    def check(self, reader: Any) -> None:
        """:raises Differs: when the plan says stock for the table, or something that ``change`` touches is not as it
        should be."""
        for ask in self.entry["asks"]:
            if reader.select(**ask) is None:
                raise Differs(f"{ask['operator']} {ask['shape']} at {ask['tokens']} tokens: {reader.explain(**ask)}")
        self.look()

    @abstractmethod
    def look(self) -> None:
        """:raises Differs: when something that ``change`` touches is not as it should be."""

    @abstractmethod
    def change(self) -> str:
        """Change the table in place, ask the engine's own functions what they now answer, and say what changed.

        :raises Differs: when that is not what the plan says.
        """

    @abstractmethod
    def restore(self) -> None:
        """Put back what was there before ``change``, however far that got; where it was not called, nothing."""


class Batches(Table):
    """An entry of a dict, a text that says by tokens what is done: ``9-64:1``."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        super().__init__(entry)
        self._changed = False

    def look(self) -> None:
        found = self.dictionary().get(self.entry["key"])
        if found != self.entry["shipped"]:
            raise Differs(f"{self.place}[{self.entry['key']}] is {found!r}, and was {self.entry['shipped']!r}")
        self.function("batch_table", ("spec",))

    def change(self) -> str:
        self._changed = True
        self.dictionary()[self.entry["key"]] = self.entry["value"]
        read = self.function("batch_table", ("spec",))(self.entry["value"])
        meant = {tokens: _value(value) for lo, hi, value in self.entry["means"] for tokens in range(lo, hi + 1)}
        if read != meant:
            raise Differs(f"{self.place}: {self.entry['value']!r} is read as {read!r}")
        return f"{self.place}[{self.entry['key']}] {self.entry['shipped']!r} -> {self.entry['value']!r}"

    def restore(self) -> None:
        if self._changed:
            self.dictionary()[self.entry["key"]] = self.entry["shipped"]

    def decides(self, tokens: int) -> bool:
        """Whether the plan, and not vLLM, decided what the table says at these tokens."""
        return any(lo <= tokens <= hi for lo, hi in self.entry["decided"])


class Projections(Table):
    """A dict by local (N, K) of what runs at each number of tokens: a config of the CuTe kernel, ``dsv3_fused_a``, or
    nothing, which is cuBLAS."""

    SPEC = ("n", "k", "dsv3_tokens", "cute_configs", "residual_configs", "name")
    CONFIG = ("num_rows", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")

    def __init__(self, entry: Mapping[str, Any]) -> None:
        super().__init__(entry)
        self._before: dict[tuple[int, int], Any] | None = None
        self.made: dict[int, tuple[int, int]] = {}
        """Shape by the identity of the spec that the plan made."""

    def look(self) -> None:
        self.function("_build_plan", ("spec",))
        spec_class, config_class = (
            self._class("ProjectionSpec", self.SPEC),
            self._class("SkinnyGemmConfig", self.CONFIG),
        )
        for key, spec in self.dictionary().items():
            if not (type(key) is tuple and len(key) == 2 and all(type(each) is int for each in key)):
                raise Differs(f"{self.place} has a key {key!r}, which is not (N, K)")
            if type(spec) is not spec_class or (spec.n, spec.k) != key:
                raise Differs(f"{self.place}[{key}] is not a ProjectionSpec of this shape")
            tokens_fit = type(spec.dsv3_tokens) is frozenset and all(type(each) is int for each in spec.dsv3_tokens)
            pairs_fit = type(spec.cute_configs) is tuple and all(
                type(pair) is tuple and len(pair) == 2 and type(pair[1]) is config_class and pair[1].num_rows == pair[0]
                for pair in spec.cute_configs
            )
            if not tokens_fit or not pairs_fit:
                raise Differs(f"{self.place}[{key}] has other values than tokens and their configs")

    def change(self) -> str:
        table = self.dictionary()
        self._before = dict(table)
        added = configs = kept = 0
        for shape in self.entry["shapes"]:
            key = (shape["n"], shape["k"])
            before = table.get(key)
            spec = self._spec(shape, before)
            added += before is None
            table[key] = spec
            self.made[id(spec)] = key
            answers = self._answers(spec)
            meant = self._meant(shape, before)
            if answers != meant:
                raise Differs(f"{self.place}[{key}] is read otherwise than it was written")
            ours = self._configs(shape, before)
            configs += len(ours)
            kept += len(shape["configs"]) - len(ours)
        rest = f", {kept} left to dsv3_fused_a, which was not measured" if kept else ""
        return f"{self.place} {configs} configs at {len(self.entry['shapes'])} shapes, {added} of them new{rest}"

    def restore(self) -> None:
        if self._before is not None:
            table = self.dictionary()
            table.clear()
            table.update(self._before)
            self.made.clear()

    def _class(self, name: str, fields: tuple[str, ...]) -> Any:
        found = getattr(self.module, name, None)
        if tuple(getattr(found, "__dataclass_fields__", ())) != fields:
            raise Differs(f"{self.entry['module']}.{name} has not exactly the fields {', '.join(fields)}")
        return found

    def _configs(self, shape: Mapping[str, Any], before: Any) -> dict[int, Any]:
        """The plan's configs by tokens, without those where vLLM runs a kernel that the plan did not measure."""
        unmeasured = (before.dsv3_tokens if before else frozenset()) - set(shape["beats_dsv3"])
        made = (self.module.SkinnyGemmConfig(**fields) for fields in shape["configs"])
        return {config.num_rows: config for config in made if config.num_rows not in unmeasured}

    def _spec(self, shape: Mapping[str, Any], before: Any) -> Any:
        configs = (dict(before.cute_configs) if before else {}) | self._configs(shape, before)
        return self.module.ProjectionSpec(
            shape["n"],
            shape["k"],
            before.dsv3_tokens if before else frozenset(),
            tuple(sorted(configs.items())),
            before.residual_configs if before else (),
            before.name if before else "",
        )

    def _answers(self, spec: Any) -> dict[int, Any]:
        answers: dict[int, Any] = self.function("_build_plan", ("spec",))(spec)
        return answers

    def _meant(self, shape: Mapping[str, Any], before: Any) -> dict[int, Any]:
        """What the engine has to answer by tokens: as before, but for the plan's configs."""
        answers = self._answers(before) if before else {}
        return answers | {tokens: ("cute", config) for tokens, config in self._configs(shape, before).items()}


KINDS: dict[str, type[Table]] = {"batches": Batches, "projections": Projections}
"""By the word for it in the overlay's document. A further kind of table is a class and an entry here."""


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
