"""The search space of an operator: typed parameters of each variant, and named constraints.

A space is finite. Its order of enumeration is fixed: variants as listed, then parameters as listed, the first
parameter slowest. Numbers and names alone are values, so that a config is canonical JSON.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError

Value = int | str | bool
Params = Mapping[str, Value]
T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """One point of a space: a variant and the values of its parameters, sorted by name."""

    variant: str
    items: tuple[tuple[str, Value], ...] = ()

    @staticmethod
    def of(variant: str, params: Params) -> Config:
        return Config(variant, tuple(sorted(params.items())))

    @property
    def params(self) -> dict[str, Value]:
        return dict(self.items)

    @cached_property
    def digest(self) -> str:
        return digest({"variant": self.variant, "params": self.params})

    def __str__(self) -> str:
        return self.variant + "".join(f" {name}={value}" for name, value in self.items)


@dataclass(frozen=True)
class Parameter:
    """One axis: its legal values in ascending order of size (or as listed), and where a search starts."""

    name: str
    values: tuple[Value, ...]
    default: Value
    meaning: str
    changes_bits: bool = False
    """Whether two values can give results that differ in their bits (accumulation order, split-K, precision)."""

    def __post_init__(self) -> None:
        if self.default not in self.values:
            raise ValueError(f"default {self.default!r} of {self.name} is not among {self.values}")


@dataclass(frozen=True)
class Constraint:
    """A named rule over one variant's parameters, with the hardware reason for it."""

    name: str
    reason: str
    holds: Callable[[Params], bool]
    of: frozenset[str] = frozenset()
    """The only parameters that it looks at, so that it is asked as soon as those are chosen; none: all of them."""


def derived(make: Callable[[Params], T]) -> Callable[[Params], T]:
    """``make``, whose last result is kept for as long as the very same parameters come again.

    The constraints of a variant are asked in turn about one config, and each derives the same kernel from it.
    """
    last: list[tuple[Params, T]] = []

    def get(params: Params) -> T:
        # One assignment to a slot: threads that list spaces at once see a whole pair, theirs or another's.
        held = last[0] if last else None
        if held is None or held[0] is not params:
            held = (params, make(params))
            last[:] = [held]
        return held[1]

    return get


@dataclass(frozen=True)
class VariantSpace:
    """The parameters and constraints of one variant at one workload and architecture."""

    variant: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()

    def configs(self) -> Iterator[Config]:
        """Every legal config, in the order of enumeration."""
        names = [parameter.name for parameter in self.parameters]
        due: list[list[Constraint]] = [[] for _ in names]
        for rule in self.constraints:
            due[max((names.index(name) for name in rule.of), default=len(names) - 1)].append(rule)

        def extended(depth: int, chosen: Params) -> Iterator[Config]:
            parameter = self.parameters[depth]
            for value in parameter.values:
                params = {**chosen, parameter.name: value}
                # No all() of a generator: most points of a large grid fail at once, and making one takes longer.
                for constraint in due[depth]:
                    if not constraint.holds(params):
                        break
                else:
                    if depth + 1 == len(names):
                        yield Config.of(self.variant, params)
                    else:
                        yield from extended(depth + 1, params)

        return extended(0, {}) if names else iter((Config.of(self.variant, {}),))

    @property
    def has_configs(self) -> bool:
        """Whether any config is legal. The defaults are tried first: a large space is listed only where they fail."""
        defaults = {parameter.name: parameter.default for parameter in self.parameters}
        return not self.violations(defaults) or next(self.configs(), None) is not None

    def violations(self, params: Params) -> list[str]:
        """One line for each reason why these parameters are not legal; empty when they are."""
        found = []
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in sorted(set(params) ^ set(known)):
            found.append(f"{name}: {'missing' if name in known else 'not a parameter of ' + self.variant}")
        for name, value in params.items():
            if name in known and value not in known[name].values:
                found.append(f"{name}={value}: allowed are {', '.join(map(str, known[name].values))}")
        if not found:
            found = [f"{rule.name}: {rule.reason}" for rule in self.constraints if not rule.holds(params)]
        return found


@dataclass(frozen=True)
class Space:
    """The variants that a workload can run with, and everything that tuning may choose."""

    variants: tuple[VariantSpace, ...]

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Every legal config."""
        return tuple(itertools.chain.from_iterable(variant.configs() for variant in self.variants))

    @cached_property
    def by_variant(self) -> dict[str, VariantSpace]:
        return {variant.variant: variant for variant in self.variants}

    @cached_property
    def _legal(self) -> frozenset[Config]:
        return frozenset(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, config: object) -> bool:
        return config in self._legal

    def violations(self, config: Config) -> list[str]:
        """One line for each reason why the config is not in the space; empty when it is."""
        variant = self.by_variant.get(config.variant)
        if variant is None:
            return [f"variant {config.variant}: allowed are {', '.join(self.by_variant) or 'none at this workload'}"]
        return variant.violations(config.params)

    def defaults(self) -> tuple[Config, ...]:
        """For each variant the legal config that is nearest to its parameters' defaults."""
        found = []
        for name, variant in self.by_variant.items():
            start = Config.of(name, {parameter.name: parameter.default for parameter in variant.parameters})
            nearest = self.nearest(start)
            if nearest is not None:
                found.append(nearest)
        return tuple(found)

    def nearest(self, config: Config, among: Sequence[Config] | None = None) -> Config | None:
        """The legal config (of ``among``, when given) of the same variant with the fewest steps along the axes.

        Ties go to the first in the order of enumeration. None when the variant has no legal config. Values that the
        config lacks or that an axis does not know count as one whole axis away.
        """
        variant = self.by_variant.get(config.variant)
        if variant is None:
            return None
        rank = {p.name: {value: i for i, value in enumerate(p.values)} for p in variant.parameters}
        wanted = config.params
        if among is None and not variant.violations(wanted):
            # No other is as near, so that a large space need not be listed. Its own values: True equals 1.
            own = {p.name: p.values[rank[p.name][wanted[p.name]]] for p in variant.parameters}
            return Config.of(config.variant, own)

        def steps(candidate: Config) -> int:
            total = 0
            for name, value in candidate.items:
                ranks = rank[name]
                here = ranks.get(wanted[name]) if name in wanted else None
                total += len(ranks) if here is None else abs(ranks[value] - here)
            return total

        candidates = [c for c in (self.configs if among is None else among) if c.variant == config.variant]
        return min(candidates, key=steps, default=None)

    def restricted(self, variants: Sequence[str] | None, values: Mapping[str, Mapping[str, Sequence[Value]]]) -> Space:
        """The space with only these variants, and of each variant's parameters only these values.

        :raises MegatuneError: for a variant, a parameter or a value that the space does not have, with what it has.
        """
        for name in [*(variants or ()), *values]:
            if name not in self.by_variant:
                raise MegatuneError(f"unknown variant {name!r}; allowed: {', '.join(self.by_variant)}")
        kept = [v for v in self.variants if not variants or v.variant in variants]
        return Space(tuple(_restrict(v, values.get(v.variant, {})) for v in kept))


def _restrict(variant: VariantSpace, values: Mapping[str, Sequence[Value]]) -> VariantSpace:
    known = {parameter.name: parameter for parameter in variant.parameters}
    for name, allowed in values.items():
        if name not in known:
            raise MegatuneError(f"unknown parameter {variant.variant}.{name}; allowed: {', '.join(known)}")
        unknown = [value for value in allowed if value not in known[name].values]
        if unknown or not allowed:
            raise MegatuneError(
                f"{variant.variant}.{name} cannot be {unknown or 'empty'}; "
                f"allowed: {', '.join(map(str, known[name].values))}"
            )
    parameters = []
    for parameter in variant.parameters:
        kept = tuple(value for value in parameter.values if value in values.get(parameter.name, parameter.values))
        default = parameter.default if parameter.default in kept else kept[0]
        parameters.append(
            Parameter(parameter.name, kept, default, parameter.meaning, changes_bits=parameter.changes_bits)
        )
    return VariantSpace(variant.variant, tuple(parameters), variant.constraints)
