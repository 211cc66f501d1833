"""Which config a consumer of a chain runs with: one that its own measurements speak for; and a reduction.

``consumers.json`` holds configs by shape and tokens, for programmatic launches and without: the winners over cold
weights and over warm ones; for consumers right behind the idle phase the ``early`` ones, the fastest when what they ask
for before they wait is taken off; and winners of reductions by width and world. It is made from recordings by
``python -m megatune_tuner.consumer_table``. A shape that it lacks runs with the default of its operator's space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.chain import Chain
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.target import architecture

DEFAULT = "default"
COLD = "cold"
WARM = "warm"
EARLY = "early"
"""Programmatic launches behind the idle phase alone; other consumers are as in ``cold``."""
TABLES = (WARM, COLD, EARLY)
"""In an order in which neighbours have the most in common."""
SIMT_DEFAULT_TOKENS = 4
"""Up to so many the default of ``simt`` is the better one: measured on an H200."""
ARCH = "sm_90a"
"""Whose limits, which are those of every architecture here, tell whether a winner at other tokens is legal."""


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath("consumers.json").read_text())
    return found


def kinds(chain: Chain) -> tuple[str, ...]:
    """The tables that know every consumer; the defaults where none does."""
    names = [f"{consumer.n}x{consumer.k}" for consumer in chain.consumers]
    found = tuple(kind for kind in TABLES if all(name in _tables().get(kind, {}) for name in names))
    return found or (DEFAULT,)


@cache
def config_of(kind: str, workload: Workload, pdl: bool) -> Config:
    """The config of a projection in a chain, with programmatic launch or without.

    Of a table it is the winner at the nearest tokens at which that is legal, more tokens before fewer.
    """
    space = operator(workload.operator).space(workload, architecture(ARCH))
    if kind != DEFAULT:
        by_tokens = _tables()[kind][f"{workload['n']}x{workload['k']}"]
        found = _nearest(by_tokens, workload.tokens, space, "pdl" if pdl else "plain")
        if found is not None:
            return found
    return _with_pdl(_default(space, workload), pdl)


def reducer_name(workload: Workload) -> str:
    """As the table calls a reduction."""
    return f"{workload['width']} over {workload.world}"


@cache
def reducer_of(workload: Workload, pdl: bool) -> Config:
    """The config of the reduction that a chain begins with: with ``pdl`` it lets consumers start while it runs.

    It is the winner without programmatic launch, since nothing is before it, at the nearest tokens at which that is
    legal, else the default of the space.
    """
    space = operator(workload.operator).space(workload, architecture(ARCH))
    by_tokens = _tables().get(workload.operator, {}).get(reducer_name(workload), {})
    found = _nearest(by_tokens, workload.tokens, space, "plain")
    return _with_pdl(found if found is not None else space.defaults()[0], pdl)


def _nearest(by_tokens: Mapping[str, Any], tokens: int, space: Space, which: str) -> Config | None:
    for near in sorted(by_tokens, key=lambda text: (abs(int(text) - tokens), -int(text))):
        winner = by_tokens[near][which]
        config = Config.of(winner["variant"], winner["params"])
        if not space.violations(config):
            return config
    return None


def _default(space: Space, workload: Workload) -> Config:
    simt = workload.tokens <= SIMT_DEFAULT_TOKENS
    return min(space.defaults(), key=lambda config: (config.variant == "simt") != simt)


def _with_pdl(config: Config, pdl: bool) -> Config:
    return Config.of(config.variant, {**config.params, "pdl": pdl})
