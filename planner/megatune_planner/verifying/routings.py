"""What was decided for several routings at once is measured again at each, and judged by the same objective."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace

from megatune_db.records import APART
from megatune_db.records import Measurement
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_planner.objective import ANY
from megatune_planner.objective import Mix
from megatune_planner.objective import mean_samples
from megatune_planner.plan import Plan

Mixes = Mapping[Workload, Mix]
"""By workload at 0 tokens, for all of the shape."""


def mixes_of(plan: Plan) -> Mixes:
    """Of a plan's shapes that were decided for several routings."""
    return {
        Workload.of(each.name, shape.dims, 0, dtype=shape.dtype, world=shape.world, routing=ANY): shape.mix
        for each in plan.content.operators
        for shape in each.shapes
        if shape.mix is not None
    }


def at_each_routing(workload: Workload, mixes: Mixes) -> tuple[Workload, ...]:
    """What is measured for a workload: itself, or itself at each routing that it stands for."""
    mix = mixes.get(workload.at(0))
    return (workload,) if mix is None else tuple(replace(workload, routing=name) for name in mix.routings)


def wholly_measured(
    measured: Collection[tuple[Workload, Config]], mixes: Mixes
) -> Iterator[tuple[Workload, Config, tuple[Workload, ...]]]:
    """What was measured at every routing that it stands for: what it is of, the config, and its workloads in the order
    of the mix."""
    known = set(measured)
    for workload, config in dict.fromkeys((replace(each, routing=ANY), config) for each, config in measured):
        parts = at_each_routing(workload, mixes)
        if parts != (workload,) and all((each, config) in known for each in parts):
            yield workload, config, parts


def joined(workload: Workload, mixes: Mixes, parts: Sequence[Measurement]) -> Measurement:
    """One measurement for all routings, of those of each in the order of the mix.

    What fails at one of them has failed. The mean pairs with others sample by sample where the parts do at every
    routing, and the worst where both have it at the same one.
    """
    mix = mixes[workload.at(0)]
    failed = next((each for each in parts if each.status is not Status.OK), None)
    if failed is not None:
        return replace(failed, workload=workload.digest)
    names = mix.routings
    medians = {name: each.median_us or 0.0 for name, each in zip(names, parts, strict=True)}
    stands = names.index(mix.slowest(medians)) if mix.kind == "worst" else 0
    sessions = [f"{each.session} at {name}" for name, each in zip(names, parts, strict=True)]
    if mix.kind == "worst":
        return replace(parts[stands], workload=workload.digest, session=sessions[stands])
    samples = tuple(float(us) for us in mean_samples(mix, [each.samples_us for each in parts]))
    found = median_interval(samples)
    apart = APART if any(each.session.startswith(APART) for each in parts) else ""
    flags = [each.throttled for each in parts if each.throttled]
    return replace(
        parts[0],
        workload=workload.digest,
        session=f"{apart}{' and '.join(sessions)}",
        samples_us=samples,
        throttled=tuple(any(flag[i] for flag in flags) for i in range(len(samples))) if flags else (),
        median_us=found.median,
        low_us=found.low,
        high_us=found.high,
    )
