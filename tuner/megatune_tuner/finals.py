"""Who is measured again at the end of a cell."""

from __future__ import annotations

from collections.abc import Sequence

from megatune_kernels.space import Config


def finalists(ranked: Sequence[Config], count: int, curve_of: str = "") -> list[Config]:
    """The best ``count`` of configs that come the fastest first, the best of each variant and of each value of the
    parameter ``curve_of``.

    Where one variant gives way to another shows in pairs of their best alone, and few of the fastest may be of one.
    So it is with values along a curve.
    """
    bests = {(config.variant, config.params.get(curve_of)): config for config in reversed(ranked)}
    chosen = {*ranked[:count], *bests.values()} if count else set()
    return [config for config in ranked if config in chosen]
