"""Makes the table of the configs that consumers and reductions of chains run with, from recordings of theirs.

python -m megatune_tuner.consumer_table cold=kimi-k3-h200 warm=RECORDING early=kimi-k3-h200 reduction=reduction-h200x2 \
    > …/consumers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.prefetch.ahead import ahead_bytes
from megatune_kernels.prefetch.chain import PROJECTION
from megatune_kernels.prefetch.chain import REDUCTION
from megatune_kernels.prefetch.chain import chain_of
from megatune_kernels.prefetch.consumers import EARLY
from megatune_kernels.prefetch.consumers import reducer_name
from megatune_kernels.space import Config
from megatune_kernels.target import architecture_of
from megatune_tuner.recordings import Recording
from megatune_tuner.recordings import recording

MODEL = "Kimi-K3"
DEGREES = (8, 16)
MOST_TOKENS = 64
IDLE_US = 5.0
"""Of the idle phase that early consumers are chosen for, one between the shortest and the longest that are measured."""
COPY = "copy_bytes_a_us"
"""The fact of a recording that says how fast the memory is."""


def consumer_table(recordings: Mapping[str, Recording]) -> dict[str, Any]:
    """The winners by regime of the weights, shape and tokens: the fastest with programmatic launches, and without; the
    ``early`` ones with, and by width, world and tokens those of reductions without.

    :param recordings: by regime; of cold weights for ``early``; and of ``reduction``.
    """
    chains = [
        chain_of(workload)
        for tensor in DEGREES
        for workload in operator("prefetch").workloads(model(MODEL), Parallel(tensor), [1])
    ]
    shapes = dict.fromkeys((consumer.n, consumer.k) for chain in chains for consumer in chain.consumers)
    makers: dict[str, Callable[[Recording, list[tuple[int, int]]], dict[str, Any]]] = {
        REDUCTION: lambda found, _: _reducers(found),
        EARLY: _early,
    }
    return {kind: makers.get(kind, _winners)(found, list(shapes)) for kind, found in recordings.items()}


def _early(found: Recording, shapes: list[tuple[int, int]]) -> dict[str, Any]:
    """The fastest when what arrives while they wait, as fast as a copy does, is taken off.

    :raises MegatuneError: when the recording does not say how fast that is.
    """
    if COPY not in found.about.facts:
        raise MegatuneError(f"{found.name} does not hold {COPY}, which early consumers are chosen by")
    speed, hardware = found.about.facts[COPY], found.about.target.hardware
    arch = architecture_of(hardware)
    table: dict[str, Any] = {}
    for workload, times in _measured(found, shapes):

        def left_us(config: Config, workload: Workload = workload, times: Mapping[Config, float] = times) -> float:
            ahead = min(ahead_bytes(workload, config, arch, hardware.sms), IDLE_US * speed)
            return times[config] - ahead / speed

        mine = [config for config in times if config.params.get("pdl") is True]
        if mine:
            winner = min(mine, key=lambda config: (left_us(config), str(config)))
            best = {"pdl": {"variant": winner.variant, "params": winner.params}}
            table.setdefault(f"{workload['n']}x{workload['k']}", {})[str(workload.tokens)] = best
    return table


def _measured(found: Recording, shapes: list[tuple[int, int]]) -> Iterator[tuple[Workload, dict[Config, float]]]:
    for n, k in shapes:
        for tokens in range(1, MOST_TOKENS + 1):
            workload = operator(PROJECTION).workload({"n": n, "k": k}, tokens)
            yield workload, found.times_us(workload)


def _reducers(found: Recording) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for workload in sorted(found.workloads, key=lambda each: (each.dims, each.world, each.tokens)):
        if workload.operator == REDUCTION:
            mine = {config: us for config, us in found.times_us(workload).items() if config.params.get("pdl") is False}
            if mine:
                winner = min(mine, key=lambda config: (mine[config], str(config)))
                best = {"plain": {"variant": winner.variant, "params": winner.params}}
                table.setdefault(reducer_name(workload), {})[str(workload.tokens)] = best
    return table


def _winners(found: Recording, shapes: list[tuple[int, int]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for workload, times in _measured(found, shapes):
        best = {}
        for name, pdl in (("pdl", True), ("plain", False)):
            mine = {config: us for config, us in times.items() if config.params.get("pdl") is pdl}
            if mine:
                winner = min(mine, key=lambda config: (mine[config], str(config)))
                best[name] = {"variant": winner.variant, "params": winner.params}
        if len(best) == 2:
            table.setdefault(f"{workload['n']}x{workload['k']}", {})[str(workload.tokens)] = best
    return table


def table_text(table: Mapping[str, Any]) -> str:
    """The file: one line a cell, so that a change shows where it is."""
    kinds = []
    for kind, shapes in table.items():
        cells = []
        for shape, by_tokens in shapes.items():
            lines = [f'   "{tokens}": {json.dumps(best)}' for tokens, best in by_tokens.items()]
            cells.append(f'  "{shape}": {{\n' + ",\n".join(lines) + "\n  }")
        kinds.append(f' "{kind}": {{\n' + ",\n".join(cells) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    sys.stdout.write(table_text(consumer_table({kind: recording(name) for kind, name in named.items()})))
