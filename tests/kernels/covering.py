"""Few configs of a space that have every value of every parameter between them."""

from __future__ import annotations

import random
from collections.abc import Collection

from megatune_kernels.space import Config
from megatune_kernels.space import Space

Value = tuple[str, str, object]


def covering(
    space: Space, seed: int, *, ran: Collection[Config] = (), refused: Collection[Config] = ()
) -> list[Config]:
    """Legal configs, so that each value of each parameter of each variant is in one of them.

    The next is always one that adds the most values: every config costs a compilation. The seed decides among equals,
    and so in which combinations values come.

    :param ran: configs whose values need no other one.
    :param refused: configs that cannot run, so that others have to have their values, where there are such.
    """
    order = [config for config in space.configs if config not in refused]
    random.Random(seed).shuffle(order)
    values = {config: _values(config) for config in order}
    missing = set[Value]().union(*values.values()).difference(*map(_values, ran))
    chosen = []
    while missing:
        best = max(order, key=lambda config: len(values[config] & missing))
        chosen.append(best)
        missing -= values[best]
    return chosen


def _values(config: Config) -> set[Value]:
    return {(config.variant, name, value) for name, value in config.items}
