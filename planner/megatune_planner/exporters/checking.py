"""Whether a runtime has what a plan's exports need of it, read from its source: any version, seen before or not."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.runtime_source import runtimes_at
from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.installed import Finding
from megatune_planner.exporters.installed import examine
from megatune_planner.plan import Plan
from megatune_planner.runtimes import SGLANG_NAMES
from megatune_planner.runtimes import asked_of


@dataclass(frozen=True)
class Checked:
    """One export against one runtime."""

    exporter: Exporter
    runtime: Runtime
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.problem)

    @property
    def other_version(self) -> bool:
        """Whether the export is written for another version than this: its loader may then refuse to serve."""
        return (self.runtime.version or "").split("+")[0] != self.exporter.runtime_version


@dataclass(frozen=True)
class Asked:
    """What the plan's gate asks of a runtime, in the runtime's own words."""

    runtime: Runtime
    document: Mapping[str, Any]
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]
    """Of the names that these words rest on, where no export needs them."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.problem)


@dataclass(frozen=True)
class Check:
    """A plan against a place."""

    checked: tuple[Checked, ...]
    left_out: tuple[tuple[Exporter, str], ...]
    """Exports for a runtime of the place that cannot express the plan, each with the reason."""
    asked: tuple[Asked, ...]

    @property
    def holds(self) -> bool:
        return not any(each.problems for each in self.checked)


def check(plan: Plan, place: Path, exporters: Iterable[Exporter]) -> Check:
    """Look up what the plan's exports need in the runtimes of a place.

    :param place: a site-packages folder, an unpacked tree or a wheel.
    :param exporters: of which those for the place's runtimes are asked.
    :raises MegatuneError: when the place has no runtime of theirs, or none of them can express the plan.
    """
    of_runtimes = [each for each in exporters if each.runtime is not None]
    packages = {(str(each.runtime), path.split("/", 1)[0]) for each in of_runtimes for path in each.relies_on}
    if not packages:
        raise MegatuneError("none of these exports is for a runtime: there is nothing to look up")
    runtimes = {runtime.name: runtime for runtime in runtimes_at(place, sorted(packages))}
    checked: list[Checked] = []
    left_out: list[tuple[Exporter, str]] = []
    for exporter in of_runtimes:
        runtime = runtimes.get(str(exporter.runtime))
        if runtime is None:
            continue
        try:
            exporter.files(plan)
            names = exporter.needs(plan)
        except MegatuneError as error:
            left_out.append((exporter, str(error).removeprefix(f"{exporter.name}: ")))
        else:
            checked.append(Checked(exporter, runtime, tuple(examine(runtime, names))))
    if not checked:
        reasons = "; ".join(f"{exporter.name}: {reason}" for exporter, reason in left_out)
        raise MegatuneError(f"no export for {' and '.join(runtimes)} can express the plan: {reasons}")
    return Check(tuple(checked), tuple(left_out), tuple(_asked(plan, runtimes.values())))


def _asked(plan: Plan, found: Iterable[Runtime]) -> Iterator[Asked]:
    for runtime in found:
        try:
            said = asked_of(runtime.name, plan.content.gate)
        except MegatuneError as error:
            yield Asked(runtime, {"cannot": str(error)}, (f"it has no words for the plan's gate: {error}",), ())
            continue
        if said is not None:
            names = SGLANG_NAMES if runtime.name == "sglang" else {}
            yield Asked(runtime, *said, tuple(examine(runtime, names)))
