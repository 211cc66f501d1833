"""Few configs of a space that have every value of every parameter between them."""

from __future__ import annotations

import random

from megatune_kernels.space import Config
from megatune_kernels.space import Space

Value = tuple[str, str, object]


def covering(space: Space, seed: int) -> list[Config]:
    """Legal configs, so that each value of each parameter of each variant is in one of them.

    The next is always one that adds the most values: every config costs a compilation. The seed decides among equals,
    and so in which combinations values come.
    """
    order = list(space.configs)
    random.Random(seed).shuffle(order)
    values: dict[Config, set[Value]] = {
        config: {(config.variant, name, value) for name, value in config.items} for config in order
    }
    missing = set[Value]().union(*values.values())
    chosen = []
    while missing:
        best = max(order, key=lambda config: len(values[config] & missing))
        chosen.append(best)
        missing -= values[best]
    return chosen
