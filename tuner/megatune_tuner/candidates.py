"""The legal configs of one cell as arrays: what a sampler chooses from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace


@dataclass(frozen=True)
class Group:
    """The legal configs of one variant."""

    variant: VariantSpace
    first: int
    """Index of the variant's first config in the catalogue."""
    ranks: NDArray[np.int16]
    """Where each value stands among its parameter's values, shape (configs, parameters)."""

    @property
    def name(self) -> str:
        return self.variant.variant

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of the variant and its parameters."""
        return (self.name, *(parameter.name for parameter in self.variant.parameters))

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The ranks as shares of each parameter's range, shape (configs, parameters)."""
        last = [max(1, len(parameter.values) - 1) for parameter in self.variant.parameters]
        return np.asarray(self.ranks / np.array(last))

    def steps(self, wanted: Iterable[Value | None]) -> NDArray[np.int64]:
        """Steps along the axes from each config to the wanted values, shape (configs,).

        A value that its axis does not know, None included, counts as one whole axis away.
        """
        total = np.zeros(len(self.ranks), dtype=np.int64)
        for column, (parameter, value) in enumerate(zip(self.variant.parameters, wanted, strict=True)):
            if value in parameter.values:
                total += np.abs(self.ranks[:, column] - parameter.values.index(value))
            else:
                total += len(parameter.values)
        return total


class Catalogue:
    """The legal configs of a space in a fixed order. It never changes, so that searches can share one.

    :param configs: the configs to choose from; by default all of the space. What the space does not have, as a
        recording of an older space can, is left out.
    :raises MegatuneError: when none is left.
    """

    def __init__(self, space: Space, configs: Iterable[Config] | None = None) -> None:
        chosen = list(space.configs) if configs is None else [c for c in configs if not space.violations(c)]
        self.configs: list[Config] = []
        self.groups: list[Group] = []
        for variant in space.variants:
            members = [config for config in chosen if config.variant == variant.variant]
            if not members:
                continue
            axes = [(p.name, {value: rank for rank, value in enumerate(p.values)}) for p in variant.parameters]
            rows = [[ranks[params[name]] for name, ranks in axes] for params in (config.params for config in members)]
            ranks = np.array(rows, dtype=np.int16).reshape(len(members), len(axes))
            self.groups.append(Group(variant, len(self.configs), ranks))
            self.configs += members
        if not self.configs:
            raise MegatuneError("the space has no legal config here; allow more variants or values")
        self.index = {config: index for index, config in enumerate(self.configs)}
        self.group_of = [number for number, group in enumerate(self.groups) for _ in group.ranks]

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def by_digest(self) -> dict[str, int]:
        """Index of each config by its digest."""
        return {config.digest: index for index, config in enumerate(self.configs)}

    def nearest(self, config: Config) -> int | None:
        """Index of the config of the same variant with the fewest steps along the axes; None without the variant."""
        if config in self.index:
            return self.index[config]
        for group in self.groups:
            if group.name == config.variant:
                params = config.params
                steps = group.steps(params.get(parameter.name) for parameter in group.variant.parameters)
                return group.first + int(steps.argmin())
        return None

    def defaults(self) -> list[int]:
        """For each variant the index of the config nearest to its parameters' defaults."""
        return [
            group.first + int(group.steps(parameter.default for parameter in group.variant.parameters).argmin())
            for group in self.groups
        ]

    def around_defaults(self) -> list[int]:
        """For each value of each parameter the index of the config nearest to the variant's defaults that has it, in
        the order of the parameters and their values."""
        found: dict[int, None] = {}
        for group in self.groups:
            steps = group.steps(parameter.default for parameter in group.variant.parameters)
            for column, parameter in enumerate(group.variant.parameters):
                for rank in range(len(parameter.values)):
                    having = np.flatnonzero(group.ranks[:, column] == rank)
                    if len(having):
                        found[group.first + int(having[steps[having].argmin()])] = None
        return list(found)
