"""Few configs of a space that have every value of every parameter between them."""

from __future__ import annotations

import random
from collections.abc import Collection

from megatune_kernels.space import Config
from megatune_kernels.space import Space

Value = tuple[str, str, object]
ENOUGH = 4_000
"""Configs among which the best are looked for; what none of them has is looked for among all."""


def covering(
    space: Space, seed: int, *, ran: Collection[Config] = (), refused: Collection[Config] = ()
) -> list[Config]:
    """Legal configs, so that each value of each parameter of each variant is in one of them.

    The next is one that adds the most values of some thousands: every config costs a compilation. The seed decides
    among equals, and so in which combinations values come.

    :param ran: configs whose values need no other one.
    :param refused: configs that cannot run, so that others have to have their values, where there are such.
    """
    order = [config for config in space.configs if config not in refused]
    random.Random(seed).shuffle(order)
    missing = set[Value]().union(*map(_values, order)).difference(*map(_values, ran))
    values = {config: _values(config) for config in order[:ENOUGH]}
    chosen = []
    while missing:
        best = max(values, key=lambda config: len(values[config] & missing))
        if not values[best] & missing:
            best = next(config for config in order if _values(config) & missing)
        chosen.append(best)
        missing -= _values(best)
    return chosen


def _values(config: Config) -> set[Value]:
    return {(config.variant, name, value) for name, value in config.items}
