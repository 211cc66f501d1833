"""What a prefetch is measured in: a phase in which the memory bus idles, then the projections that read weights.

A chain is described by the dims of a workload: ``idle_ns``, or in a group ``width`` of the reduction that is the idle
phase there; then ``n1`` and ``k1`` of the first projection, ``n2`` and ``k2`` of the second and so on, and
``after2 = 0`` where the second follows the idle phase (0) or another projection (its number) instead of the one before
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator

PROJECTION = "projection"
REDUCTION = "reduction"
LEAST_IDLE_NS = 500
MOST_IDLE_NS = 1_000_000
"""A millisecond: no phase of a decode step keeps the bus idle for longer."""
MOST_CONSUMERS = 8
BF16_BYTES = 2
_NUMBERED = re.compile(r"(n|k|after)([1-9]\d?)")


@dataclass(frozen=True)
class Consumer:
    """A projection of a chain."""

    number: int
    n: int
    k: int
    after: int
    """The number of the projection that it follows; 0 is the idle phase."""

    @property
    def name(self) -> str:
        return f"consumer{self.number}"

    @property
    def row_bytes(self) -> int:
        return BF16_BYTES * self.k

    @property
    def weight_bytes(self) -> int:
        return self.n * self.row_bytes

    def workload(self, tokens: int) -> Workload:
        return Workload.of(PROJECTION, {"n": self.n, "k": self.k}, tokens)


@dataclass(frozen=True)
class Chain:
    """An idle phase and what follows."""

    idle_ns: int
    """Its length; 0 where it is a reduction."""
    width: int
    """Of the reduction; 0 where it is a stand-in of a stated length."""
    consumers: tuple[Consumer, ...]
    """In the order in which they read their weights: each behind the one that it follows, else by number."""

    @property
    def weight_bytes(self) -> int:
        return sum(consumer.weight_bytes for consumer in self.consumers)

    def traffic_bytes(self, tokens: int) -> int:
        """Activations that the consumers read and write: what the L2 holds of them beside weights."""
        return sum(BF16_BYTES * tokens * (consumer.n + consumer.k) for consumer in self.consumers)

    def dims(self) -> dict[str, int]:
        """The dims that describe the chain; what is usual is left out, so that equal chains are equal workloads."""
        found = {"width": self.width} if self.width else {"idle_ns": self.idle_ns}
        for consumer in self.consumers:
            found |= {f"n{consumer.number}": consumer.n, f"k{consumer.number}": consumer.k}
            if consumer.after != consumer.number - 1:
                found[f"after{consumer.number}"] = consumer.after
        return found

    def streams(self) -> Iterator[tuple[Consumer, int, bool]]:
        """Each consumer with its stream, and whether it comes there right behind what it follows.

        The first that follows something stays on its stream; any other has a stream of its own.
        """
        stream_of = {0: 0}
        last_on = {0: 0}
        for consumer in self.consumers:
            stream = stream_of[consumer.after]
            behind = last_on[stream] == consumer.after
            if not behind:
                stream = len(last_on)
            stream_of[consumer.number] = stream
            last_on[stream] = consumer.number
            yield consumer, stream, behind


@cache
def chain_of(workload: Workload) -> Chain:
    """The chain of a workload."""
    return chain_from(dict(workload.dims), workload.tokens, workload.world)


def chain_from(dims: Mapping[str, int], tokens: int, world: int = 1) -> Chain:
    """The chain that dims describe.

    :raises MegatuneError: naming the dim that is unknown, missing or impossible, or those that form a cycle.
    """
    phase = "idle_ns" if world == 1 else "width"
    unknown = [name for name in dims if name != phase and not _NUMBERED.fullmatch(name)]
    if unknown:
        raise MegatuneError(
            f"{unknown[0]}: a chain has the dims {phase}, n1 and k1, n2 and k2, …, and after2, … where a consumer does "
            f"not follow the one before it{', in a group of ranks' if world > 1 else ''}"
        )
    if world > 1:
        try:
            operator(REDUCTION).workload({phase: dims[phase]} if phase in dims else {}, tokens, world=world)
        except MegatuneError as error:
            raise MegatuneError(f"{phase}: the idle phase of a group is a reduction: {error}") from error
    elif "idle_ns" not in dims:
        raise MegatuneError("idle_ns: missing; for how many nanoseconds is the memory bus idle?")
    elif not LEAST_IDLE_NS <= dims["idle_ns"] <= MOST_IDLE_NS:
        raise MegatuneError(f"idle_ns={dims['idle_ns']} is out of range: {LEAST_IDLE_NS} to {MOST_IDLE_NS}")
    count = max((int(match[2]) for match in map(_NUMBERED.fullmatch, dims) if match), default=0)
    if not 1 <= count <= MOST_CONSUMERS:
        what = f"n{count}: " if count else "n1: missing; "
        raise MegatuneError(f"{what}a chain has 1 to {MOST_CONSUMERS} consumers")
    consumers = {}
    for number in range(1, count + 1):
        for dim in (f"n{number}", f"k{number}"):
            if dim not in dims:
                raise MegatuneError(f"{dim}: consumer {number} of {count} is missing")
        n, k, after = dims[f"n{number}"], dims[f"k{number}"], dims.get(f"after{number}", number - 1)
        try:
            operator(PROJECTION).workload({"n": n, "k": k}, tokens)
        except MegatuneError as error:
            raise MegatuneError(f"n{number}, k{number}: {error}") from error
        if not 0 <= after <= count:
            raise MegatuneError(f"after{number}={after}: there is no consumer {after}; allowed: 0 to {count}")
        consumers[number] = Consumer(number, n, k, after)
    return Chain(dims.get("idle_ns", 0), dims.get("width", 0), tuple(_ordered(consumers)))


def _ordered(consumers: Mapping[int, Consumer]) -> list[Consumer]:
    """Consumers in an order in which each comes behind the one that it follows.

    :raises MegatuneError: where some follow one another in a circle.
    """
    found: list[Consumer] = []
    done = {0}
    while len(found) < len(consumers):
        ready = next((c for number, c in consumers.items() if number not in done and c.after in done), None)
        if ready is None:
            left = ", ".join(f"after{number}={c.after}" for number, c in consumers.items() if number not in done)
            raise MegatuneError(f"{left}: a cycle, none of these consumers can be the first")
        found.append(ready)
        done.add(ready.number)
    return found
