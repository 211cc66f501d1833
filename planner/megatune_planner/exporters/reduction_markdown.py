"""All-reduce settings to read, beside the file that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from megatune_kernels.canonical import canonical_json
from megatune_planner.exporters.reduction_schema import Limit
from megatune_planner.exporters.reduction_schema import PlanSource
from megatune_planner.exporters.reduction_schema import Runtime
from megatune_planner.exporters.reduction_schema import Setting
from megatune_planner.exporters.reduction_schema import Settings


def files(name: str, settings: Settings) -> dict[str, str]:
    """``NAME.json`` and ``NAME.md``; what was built is checked once more as what it will be read as."""
    text = canonical_json(settings.model_dump(mode="json")) + "\n"
    Settings.model_validate_json(text)
    return {f"{name}.json": text, f"{name}.md": "\n".join(_lines(settings)) + "\n"}


def heading(title: str, runtime: Runtime, plan: PlanSource, notes: Sequence[str]) -> Iterator[str]:
    """The title, and what to know first."""
    hardware, toolchain = plan.target["hardware"], plan.target["toolchain"]
    yield f"# {title} of {runtime.name} {runtime.version}"
    yield ""
    yield f"- Plan: {plan.name}, digest {plan.digest}"
    yield (
        f"- Target: {hardware['gpu']}, links {hardware['links']}, driver {toolchain['driver']}, "
        f"CUDA {toolchain['cuda']}, DSL {toolchain['dsl']}"
    )
    yield f"- Regime: {plan.regime}"
    yield from (f"- {note}" for note in notes)


def limits_table(limits: Sequence[Limit]) -> Iterator[str]:
    """One row for each limit, then its warnings."""
    yield "| width | world | to tokens | bytes of a rank | one-shot traffic, bytes | then | measured to | provenance |"
    yield "|---:|---:|---:|---:|---:|---|---:|---|"
    for each in limits:
        then = f"{each.next_serves} at {each.next_tokens}" if each.next_tokens else "not measured"
        cells = (
            f"{each.width} {each.dtype}",
            each.world,
            each.tokens,
            each.payload_bytes,
            each.traffic_bytes,
            then,
            each.measured_to,
            ", ".join(each.provenance),
        )
        yield f"| {' | '.join(map(str, cells))} |"
    warnings = [f"- Width {each.width}, world {each.world}: {warning}." for each in limits for warning in each.warnings]
    if warnings:
        yield ""
        yield from warnings


def left_out(skipped: Sequence[str]) -> Iterator[str]:
    """What the plan has and the file does not, if anything."""
    if skipped:
        yield ""
        yield "## Left out"
        yield ""
        yield from (f"- {line}" for line in skipped)


def _lines(settings: Settings) -> Iterator[str]:
    yield from heading("All-reduce", settings.runtime, settings.plan, settings.notes)
    for setting in settings.settings:
        yield ""
        yield from _setting(setting)
    yield from left_out(settings.skipped)


def _setting(setting: Setting) -> Iterator[str]:
    yield f"## World {setting.world}: {setting.name}"
    yield ""
    yield "```sh"
    if setting.where == "environment":
        yield f"{setting.name}={setting.value}"
    else:
        yield f"{setting.where}.{setting.name}={setting.value}"
    yield "```"
    yield ""
    yield f"In {setting.unit}: {setting.conversion}."
    yield ""
    if setting.warnings:
        yield from (f"- {warning[0].upper()}{warning[1:]}." for warning in setting.warnings)
        yield ""
    yield from limits_table(setting.limits)
