"""What has to be measured again to verify a plan: only what decides, and a few configs that decide nothing.

- **Ends.** Of every band that rests on measurements its first and its last tokens, which are both sides of every
  boundary. There a band's own config is measured with every baseline, and it or stock with its rivals: the config of
  the neighbouring band, and the fastest of each variant when the plan was made. Where neither of these tokens was
  measured then, the measured ones in the middle of the band are taken too, so that something is compared with then.
- **Canaries.** Configs away from boundaries, always the same ones of a plan, whose times are compared with what they
  were: they say whether the machine itself has changed, whatever the plan says.

Everything of one workload is measured in one session, interleaved, so that comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Literal

from megatune_db.records import Stage
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import architecture_of
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import CurvePoint
from megatune_planner.band_schema import Latency
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.verifying.routings import Mixes
from megatune_planner.verifying.routings import at_each_routing
from megatune_planner.verifying.routings import mixes_of

CANARIES = 3
"""Workloads that are canaries; of each the fastest config and the fastest baseline are measured."""

Measurable = Callable[[Workload, Config], bool]
"""Whether a config of a workload can be measured at all: a recording has few."""
Kind = Literal["baseline", "neighbour", "variant"]


@dataclass(frozen=True)
class Rival:
    """What a choice is compared with."""

    config: Config
    kind: Kind
    """``baseline``: what serves without a plan; ``neighbour``: what the next band serves; ``variant``: the fastest of
    a variant when the plan was made."""


@dataclass(frozen=True)
class BandEnd:
    """One end of a band, and what is compared there."""

    operator: str
    shape: ShapePlan
    band: Band
    workload: Workload
    choice: Config | None
    """What the band serves; None for stock whose baseline is not known."""
    rivals: tuple[Rival, ...]
    end: int
    """The first or last tokens of the band; those of the workload stand for them."""


@dataclass(frozen=True)
class Canary:
    """A config whose time is compared with what it was."""

    workload: Workload
    config: Config
    then: Latency


@dataclass(frozen=True)
class Check:
    """What to measure of one workload, interleaved in one session."""

    workload: Workload
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class Checks:
    """Everything that a verification measures."""

    ends: tuple[BandEnd, ...]
    canaries: tuple[Canary, ...]
    mixes: Mixes = field(default_factory=dict)

    @property
    def to_measure(self) -> tuple[Check, ...]:
        """By workload, each config once, in an order that depends on the plan alone."""
        found: dict[Workload, dict[Config, None]] = {}
        for band_end in self.ends:
            configs = [*(rival.config for rival in band_end.rivals), *([band_end.choice] if band_end.choice else [])]
            found.setdefault(band_end.workload, {}).update(dict.fromkeys(configs))
        for canary in self.canaries:
            found.setdefault(canary.workload, {})[canary.config] = None
        return tuple(
            Check(each, tuple(configs))
            for workload, configs in found.items()
            for each in at_each_routing(workload, self.mixes)
        )


def checks_of(plan: Plan, measurable: Measurable | None = None) -> Checks:
    """What to measure to verify a plan.

    :param measurable: whether a config can be measured; None: every one can. Where a band's choice cannot be at the end
        of the band, its nearest measured tokens stand for it, and rivals that cannot be are left out.
    :raises MegatuneError: for an operator that is not installed.
    """
    mixes = mixes_of(plan)

    def can(workload: Workload, config: Config) -> bool:
        return measurable is None or all(measurable(each, config) for each in at_each_routing(workload, mixes))

    ends: list[BandEnd] = []
    for each in plan.content.operators:
        for shape in each.shapes:
            ends += _ends(plan, each.name, each.baselines, shape, can)
    return Checks(tuple(ends), tuple(_canaries(plan, {band_end.workload for band_end in ends}, can)), mixes)


def workload_of(operator_name: str, shape: ShapePlan, tokens: int) -> Workload:
    """What the shape's figures at these tokens are of; where they stand for several routings, ``at_each_routing`` says
    what is measured for them."""
    return Workload.of(operator_name, shape.dims, tokens, dtype=shape.dtype, world=shape.world, routing=shape.routing)


def choice_of(band: Band) -> Config | None:
    """What a band serves as a config; a baseline is one without parameters. None for stock that is not known."""
    decision = band.decision
    if decision.kind == "config":
        return Config.of(decision.variant, dict(decision.params))
    return None if decision.baseline is None else Config.of(decision.baseline, {})


def _ends(plan: Plan, name: str, baselines: Sequence[str], shape: ShapePlan, can: Measurable) -> Iterator[BandEnd]:
    tuned = operator(name)
    arch = architecture_of(plan.content.target.fingerprint.hardware)
    known = [curve.name for curve in shape.curves if curve.kind == "baseline"]
    for index, band in enumerate(shape.bands):
        if not band.points:  # stock that rests on nothing has nothing that could drift
            continue
        choice = choice_of(band)
        for end, tokens in _tokens_of_ends(band, partial(_can_serve, name, shape, choice, can)):
            workload = workload_of(name, shape, tokens)
            space = tuned.space(at_each_routing(workload, mixes_of(plan))[0], arch)
            # Stock is whatever serves without a plan: which baseline that is decides nothing.
            served = known if band.decision.kind == "config" else []
            rivals: dict[Config, Kind] = {Config.of(each, {}): "baseline" for each in baselines if each in served}
            for beside in _neighbours(shape, index, end):
                other = choice_of(beside)
                # What is not legal here cannot be what would have served.
                legal = other is not None and (other.variant in tuned.baselines or not space.violations(other))
                if other is not None and other.variant not in tuned.baselines and legal:
                    rivals.setdefault(other, "neighbour")
            for curve in shape.curves:
                found = curve.at(tokens) if curve.kind == "variant" else None
                if found is not None:
                    rivals.setdefault(Config.of(found.variant, dict(found.params)), "variant")
            yield BandEnd(
                operator=name,
                shape=shape,
                band=band,
                workload=workload,
                choice=choice,
                rivals=tuple(
                    Rival(config, kind) for config, kind in rivals.items() if config != choice and can(workload, config)
                ),
                end=end,
            )


def _can_serve(name: str, shape: ShapePlan, choice: Config | None, can: Measurable, tokens: int) -> bool:
    return choice is not None and can(workload_of(name, shape, tokens), choice)


def _tokens_of_ends(band: Band, can: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """The ends of a band, each with the tokens that stand for it; and measured ones between where neither was."""
    measured = [point.tokens for point in band.points]
    ends = [band.tokens_lo] if band.tokens_hi is None else sorted({band.tokens_lo, band.tokens_hi})
    taken: list[int] = []
    for end in ends:
        near = [end] if can(end) else sorted((t for t in measured if can(t)), key=lambda t: abs(t - end))
        # Where nothing can be measured the end is asked for all the same: its band cannot be told then.
        tokens = near[0] if near else end
        if tokens not in taken:
            taken.append(tokens)
            yield end, tokens
    if not set(taken) & set(measured):
        middle = [tokens for tokens in measured if can(tokens)]
        if middle:
            yield middle[len(middle) // 2], middle[len(middle) // 2]


def _neighbours(shape: ShapePlan, index: int, end: int) -> Iterator[Band]:
    band = shape.bands[index]
    if end == band.tokens_lo and index > 0:
        yield shape.bands[index - 1]
    if end == band.tokens_hi and index + 1 < len(shape.bands):
        yield shape.bands[index + 1]


def _canaries(plan: Plan, ends: set[Workload], can: Measurable) -> Iterator[Canary]:
    """The fastest config and baseline of a few workloads that are no end, or else of some that are."""
    places = [
        (workload_of(each.name, shape, tokens), shape)
        for each in plan.content.operators
        for shape in each.shapes
        for tokens in shape.measured_tokens
    ]
    # Which ones these are follows from their digests: a sample of the plan that is the same every time.
    places.sort(key=lambda place: digest(["canary", place[0].digest]))
    inside = [canaries for w, shape in places if w not in ends and (canaries := _of_workload(w, shape, can))]
    beside = [canaries for w, shape in places if w in ends and (canaries := _of_workload(w, shape, can))]
    for canaries in (inside or beside)[:CANARIES]:
        yield from canaries


def _of_workload(workload: Workload, shape: ShapePlan, can: Measurable) -> list[Canary]:
    found = []
    for kind in ("variant", "baseline"):
        points = [curve.at(workload.tokens) for curve in shape.curves if curve.kind == kind]
        point = _fastest(point for point in points if point is not None)
        if point is not None and can(workload, config := Config.of(point.variant, dict(point.params))):
            found.append(Canary(workload, config, point.latency))
    return found


def _fastest(points: Iterable[CurvePoint]) -> CurvePoint | None:
    """The fastest, one that was measured among finalists before one of a search, as a verification measures."""
    return min(points, key=lambda point: (point.stage is not Stage.FINAL, point.latency.median_us), default=None)


def check_hardware(plan: Plan, hardware: Hardware) -> None:
    """:raises MegatuneError: where this is not the hardware that the plan holds for."""
    gate, other = plan.content.gate, plan.content.target.fingerprint.hardware
    same = (
        hardware.arch == gate.arch
        and hardware.sms == gate.sms
        and gate.memory_bytes_lo <= hardware.memory_bytes <= gate.memory_bytes_hi
        and hardware.device_id.lower() in gate.device_ids
        and (hardware.links, hardware.world) == (other.links, other.world)
    )
    if not same:
        raise MegatuneError(
            f"the plan holds for {_hardware(other)}, and this is {_hardware(hardware)}: verify it where it serves"
        )


def _hardware(hardware: Hardware) -> str:
    ranks = f", {hardware.world} ranks over {hardware.links}" if hardware.world > 1 else ""
    return f"{hardware.gpu} ({hardware.arch}, {hardware.sms} SMs, device {hardware.device_id}{ranks})"
