"""A verification for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.console import RenderableType
from rich.table import Column
from rich.table import Table
from rich.text import Text

from megatune_planner.crossover_schema import Ratio
from megatune_planner.routings import at_routing
from megatune_planner.verifying.verification import BandVerdict
from megatune_planner.verifying.verification import Compared
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

STYLES = {Verdict.HOLDS: "green", Verdict.DRIFTED: "bold red", Verdict.CANNOT_TELL: "yellow"}


def render_verification(found: Verification) -> RenderableType:
    """Every band that rests on measurements, the canaries and the verdict; plain text where colours are off."""
    return Group(*_parts(found))


def _parts(found: Verification) -> Iterator[RenderableType]:
    # A shape is one long word, and shapes differ at its end.
    table = Table("operator", Column("shape", overflow="fold"), "tokens", "serves")
    for name in ("against the baseline", "against its rivals", "verdict"):
        table.add_column(name)
    before = None
    for band in found.bands:
        if band.ends:
            world = f" world {band.world}" if band.world > 1 else ""
            place = (band.operator, f"{band.shape}{world}{at_routing(band.routing)}")
            table.add_row(
                *(("", "") if place == before else place),
                tokens_text(band),
                band.decision if band.decision.startswith("stock") else band.decision.partition(" ")[0],
                _closest(band, baseline=True),
                _closest(band, baseline=False),
                Text(band.verdict, style=STYLES[band.verdict]),
            )
            before = place
    yield table
    for band in found.bands:
        if band.verdict is not Verdict.HOLDS:
            yield Text(f"{_place(band)}, {tokens_text(band)} tokens: {band.verdict}: {band.reason}")
    for band, band_end, each in found.gains:
        yield Text(f"{_place(band)}, {band_end.tokens} tokens: {each.against} {each.reason}")
    if found.changed:
        changed = ", ".join(f"{name} {before} to {now}" for name, (before, now) in found.changed.items())
        yield Text(f"changed since the plan was made: {changed}")
        gated = [name for name in found.changed if name in found.toolchain]
        if gated and found.verdict is Verdict.HOLDS:
            yield Text(
                f"its gate asks for the {' and '.join(gated)} of then: stock serves here until it is planned again"
            )
    yield Text(f"machine: {found.machine.verdict}: {found.machine.reason}")
    where = f"replayed from {found.recording}" if found.recording is not None else str(found.provenance)
    yield Text(
        f"time against what it is compared with, its 95 % interval; may be {found.margin:.1%} slower; drift is claimed "
        f"where it holds for all {found.comparisons} comparisons at once; {where}"
    )
    yield Text(f"plan {found.name}: {found.verdict}: {found.reason}", style=STYLES[found.verdict])


def _place(band: BandVerdict) -> str:
    return f"{band.operator} {band.shape}{at_routing(band.routing)}"


def tokens_text(band: BandVerdict) -> str:
    """The band's tokens, e.g. ``1``, ``2-4`` or ``65+``."""
    if band.tokens_hi is None:
        return f"{band.tokens_lo}+"
    return str(band.tokens_lo) if band.tokens_lo == band.tokens_hi else f"{band.tokens_lo}-{band.tokens_hi}"


def closest(band: BandVerdict, *, baseline: bool) -> Compared | None:
    """Of all comparisons of a band the one that is the worst for its choice."""
    found = [
        each
        for band_end in band.ends
        for each in band_end.compared
        if each.now is not None and (each.kind == "baseline") == baseline
    ]
    return max(found, key=lambda each: each.now.high if each.now else 0.0, default=None)


def _closest(band: BandVerdict, *, baseline: bool) -> str:
    found = closest(band, baseline=baseline)
    return "-" if found is None or found.now is None else ratio_text(found.now)


def ratio_text(ratio: Ratio) -> str:
    """A ratio as a difference, with its interval, e.g. ``-12.1% (-12.6 to -11.8)``."""
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f"{ratio.median - 1:+.1%} ({low:+.1f} to {high:+.1f})"
