"""How tokens are spread over experts: an axis of the workload, by name. Imports no torch.

- ``balanced``: every expert has as many tokens as any other, or one fewer.
- ``power_law_A``: loads of experts follow a density of x^-A between two bounds, as in the tables of fused-MoE latencies
  that are published by the name of aiconfigurator: 0.01 and 2 where there are no more routes than experts, else 1 and
  0.8 of the tokens. They are scaled to the number of routes and rounded, no expert has a token twice, and what
  rounding leaves goes to, or comes from, the experts with the most.
- ``same``: all tokens go to the same experts, the extreme in which every weight that is read serves every token.
- ``trace_NAME``: ids that were recorded of a runtime, see ``Trace``.

One token is the other extreme: whatever the name, it goes to ``top`` experts.

A draw is [tokens, top] of ids, in which a token has an expert once. Draws of one name differ by their number in the
experts that they name, so that launches over several of them find cold weights.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatune_kernels.errors import MegatuneError

Ids = NDArray[np.int32]

BALANCED = "balanced"
SAME = "same"
POWER_LAWS = ("power_law_1.01", "power_law_1.2")
"""Those that published tables have."""
NAMES = (BALANCED, *POWER_LAWS, SAME)
DEFAULT = POWER_LAWS[0]
TRACES = "MEGATUNE_TRACES"
"""Environment variable: the folder in which recorded routings lie as ``NAME.json``."""
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
_TRACE = re.compile(r"trace_([A-Za-z0-9][A-Za-z0-9._-]{0,50})")
_SPARSE_BOUNDS = (0.01, 2.0)
_LARGEST_SHARE = 0.8
_SEED = 20_261_130
STATISTICS_DRAWS = 8
"""Draws over which the coverage of a routing is averaged."""


@dataclass(frozen=True)
class Coverage:
    """What a routing makes of a workload."""

    distinct: float
    """Experts that have a token: the weights that are read."""
    tokens_an_expert: float
    """Of those, on the average."""
    most: float
    """Tokens of the expert that has the most."""

    def to_dict(self) -> dict[str, float]:
        return {
            "distinct experts": self.distinct,
            "tokens an expert": self.tokens_an_expert,
            "most tokens of an expert": self.most,
        }

    def __str__(self) -> str:
        return (
            f"{self.distinct:.0f} experts, {self.tokens_an_expert:.2f} tokens an expert, {self.most:.0f} of the busiest"
        )


def check_routing(name: str, experts: int, top: int, tokens: int) -> None:
    """:raises MegatuneError: for a name that says no routing, or a trace that does not fit, with what is allowed."""
    law = _POWER_LAW.fullmatch(name)
    if law is not None and float(law[1]) > 0 and float(law[1]) != 1.0:
        return
    trace = _TRACE.fullmatch(name)
    if trace is not None:
        _trace(trace[1]).check(experts, top, tokens)
    elif name not in NAMES:
        raise MegatuneError(
            f"routing {name!r} is unknown; allowed: {', '.join(NAMES)}, power_law_A of any exponent but 1, and "
            f"trace_NAME of a recording NAME.json in the folder that {TRACES} names"
        )


def draw(name: str, experts: int, top: int, tokens: int, number: int) -> Ids:
    """The ids [tokens, top] of one draw.

    :raises MegatuneError: as ``check_routing``.
    """
    check_routing(name, experts, top, tokens)
    random = np.random.default_rng((_SEED, experts, top, tokens, number))
    trace = _TRACE.fullmatch(name)
    if trace is not None:
        return _trace(trace[1]).draw(tokens, number)
    law = _POWER_LAW.fullmatch(name)
    if law is not None:
        counts = _power_law(float(law[1]), experts, top, tokens, random)
        named = np.repeat(np.argsort(-counts, kind="stable"), np.sort(counts)[::-1])
        # No expert has more tokens than there are, so that no two of its routes are in one row of this transpose.
        ids = named.reshape(top, tokens).T
    elif name == SAME:
        ids = np.broadcast_to(np.arange(top), (tokens, top))
    else:
        ids = np.arange(tokens * top).reshape(tokens, top) % experts
    return np.ascontiguousarray(random.permutation(experts)[ids], dtype=np.int32)


def apart(ids: Ids, experts: int, used: int, order: NDArray[np.int64]) -> tuple[Ids, int]:
    """The same draw with other experts in the place of those that it names: the next ones of ``order`` behind the first
    ``used``, in turns.

    :param order: a permutation of the experts.
    :returns: the ids, and how many of ``order`` are used then.
    """
    named, places = np.unique(ids, return_inverse=True)
    taken = order[(used + np.arange(len(named))) % experts]
    return np.ascontiguousarray(taken[places.reshape(ids.shape)], dtype=np.int32), used + len(named)


@lru_cache(maxsize=4096)
def coverage(name: str, experts: int, top: int, tokens: int) -> Coverage:
    """The coverage of a routing, averaged over draws.

    :raises MegatuneError: as ``check_routing``.
    """
    counts = [
        np.bincount(draw(name, experts, top, tokens, number).ravel(), minlength=experts)
        for number in range(STATISTICS_DRAWS)
    ]
    distinct = float(np.mean([np.count_nonzero(each) for each in counts]))
    return Coverage(distinct, tokens * top / distinct, float(np.mean([each.max() for each in counts])))


def _power_law(exponent: float, experts: int, top: int, tokens: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Tokens of each expert."""
    routes = tokens * top
    low, high = (1.0, max(1.0, _LARGEST_SHARE * tokens)) if routes > experts else _SPARSE_BOUNDS
    ends = low ** (1 - exponent), high ** (1 - exponent)
    loads: NDArray[np.float64] = (ends[0] + (ends[1] - ends[0]) * random.random(experts)) ** (1 / (1 - exponent))
    counts = np.minimum(np.rint(loads / loads.sum() * routes).astype(np.int64), tokens)
    order = np.argsort(-counts, kind="stable")
    left, place = routes - int(counts.sum()), 0
    while left:
        expert = order[place % experts]
        step = 1 if left > 0 else -1
        if 0 <= counts[expert] + step <= tokens:
            counts[expert] += step
            left -= step
        place += 1
    return np.asarray(counts, dtype=np.int64)


@dataclass(frozen=True)
class Trace:
    """Ids that a runtime's router gave out: a JSON object with ``experts`` and ``steps``, a list of decode steps, each
    a list of tokens, each a list of the ids of its experts."""

    name: str
    experts: int
    top: int
    steps: tuple[Ids, ...]

    def check(self, experts: int, top: int, tokens: int) -> None:
        """:raises MegatuneError: when it is of another shape, or has no step with so many tokens."""
        if (self.experts, self.top) != (experts, top):
            raise MegatuneError(
                f"the trace {self.name} is of the top {self.top} of {self.experts} experts, and the workload has the "
                f"top {top} of {experts}"
            )
        if not self._fitting(tokens):
            raise MegatuneError(f"the trace {self.name} has no step of {tokens} or more tokens")

    def draw(self, tokens: int, number: int) -> Ids:
        """The first tokens of a step, steps in turns."""
        fitting = self._fitting(tokens)
        return fitting[number % len(fitting)][:tokens]

    def _fitting(self, tokens: int) -> list[Ids]:
        return [step for step in self.steps if len(step) >= tokens]


@lru_cache(maxsize=16)
def _read_trace(path: Path, _changed: int) -> Trace:
    try:
        found = json.loads(path.read_text())
        experts = int(found["experts"])
        steps = tuple(np.array(step, dtype=np.int32) for step in found["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MegatuneError(f"{path} is no recorded routing: {error}") from error
    widths = {step.shape[1] if step.ndim == 2 else 0 for step in steps}
    if len(widths) != 1 or 0 in widths:
        raise MegatuneError(
            f"{path} is no recorded routing: every step has to be a list of tokens with as many ids each"
        )
    for number, step in enumerate(steps):
        if bool(((step < 0) | (step >= experts)).any()):
            raise MegatuneError(f"{path}: step {number} names an expert that is none of {experts}")
        if bool((np.diff(np.sort(step, axis=1), axis=1) == 0).any()):
            raise MegatuneError(f"{path}: step {number} has a token that goes to an expert twice")
    return Trace(path.stem, experts, widths.pop(), steps)


def _trace(name: str) -> Trace:
    folder = os.environ.get(TRACES)
    if not folder:
        raise MegatuneError(f"routing trace_{name}: set {TRACES} to the folder that has {name}.json")
    path = Path(folder) / f"{name}.json"
    if not path.is_file():
        raise MegatuneError(f"routing trace_{name}: there is no {path}")
    return _read_trace(path, path.stat().st_mtime_ns)
