"""Latency over tokens of one shape, as a picture. Needs matplotlib, which is imported here alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import Curve
from megatune_planner.crossover_schema import Crossover
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASELINE_COLOUR = "#6b7280"
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")
"""Of variants, in their order."""
INK = "#111827"
FAINT = "#e5e7eb"
PLAN_LABEL = "the plan"
DASHES: tuple[tuple[float, ...], ...] = ((5, 2), (1, 1.5), (6, 2, 1, 2))
"""Of baselines, in their order: points on, points off."""
HEADROOM = 1.4
"""Of the axis over the slowest baseline: a variant far above it has lost, and would squash the rest."""
LEGEND_COLUMNS = 4
"""Of one row."""
LOGARITHMIC = 8
"""Latencies further apart than this factor need a logarithmic axis: on a straight one the fast ones are one line."""


def latency_figure(plan: Plan, operator: str, shape: str, path: Path, *, world: int | None = None) -> None:
    """Draw the curves of one shape with their intervals, over its bands and its variants' crossovers, and write it in
    the format of the suffix.

    :param shape: as in the plan, e.g. ``k=7168,n=6288``.
    :param world: ranks; needed where the plan has the shape for several.
    :raises MegatuneError: when the plan has no such shape or several, the format is unknown, or matplotlib is not
        installed.
    """
    chosen = _shape(plan, operator, shape, world)
    with picture(path, plan.digest, last=PLAN_LABEL) as axes:
        _draw(axes, plan, operator, chosen)


@contextmanager
def picture(path: Path, salt: str, *, last: str) -> Iterator[Axes]:
    """Axes to draw on; at the end the figure gets its legend and is written in the format of the suffix.

    :param salt: what the ids in a file are made of, so that the same content gives the same bytes.
    :param last: label of what comes last in the legend.
    :raises MegatuneError: when the format is unknown, or matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MegatuneError("drawing needs matplotlib: install megatune[dev]") from None
    # SVG otherwise holds the date and random ids, and the same plan would give other bytes each time.
    with rc_context({"svg.hashsalt": salt, "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        if path.suffix.removeprefix(".") not in canvas.get_supported_filetypes():
            allowed = ", ".join(sorted(canvas.get_supported_filetypes()))
            raise MegatuneError(f"cannot draw {path.name}: the suffix must be one of {allowed}")
        axes = figure.add_subplot()
        yield axes
        handles, labels = axes.get_legend_handles_labels()
        # Lines come before error bars: what is drawn last would not be last by itself.
        order = sorted(range(len(labels)), key=lambda index: labels[index] == last)
        figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="outside lower center",
            ncols=len(order) if len(order) <= LEGEND_COLUMNS else -(-len(order) // 2),
            frameon=False,
            labelcolor=INK,
        )
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def _shape(plan: Plan, operator: str, shape: str, world: int | None) -> ShapePlan:
    shapes = plan.operator(operator).shapes
    found = [part for part in shapes if part.shape == shape and world in (None, part.world)]
    if len(found) == 1:
        return found[0]
    known = "; ".join(f"{part.shape} world {part.world} {part.dtype}" for part in shapes)
    if found:
        raise MegatuneError(f"the plan has the shape {shape!r} of {operator} several times, say which world: {known}")
    at = "" if world is None else f" at world {world}"
    raise MegatuneError(f"the plan has no shape {shape!r} of {operator}{at}; it has {known}")


def _draw(axes: Axes, plan: Plan, operator: str, shape: ShapePlan) -> None:
    variants = [curve for curve in shape.curves if curve.kind == "variant"]
    colours = {curve.name: COLOURS[index % len(COLOURS)] for index, curve in enumerate(variants)}
    _style(axes, shape)
    _shade(axes, shape, colours)
    for crossover in shape.crossovers:
        if {crossover.below, crossover.above} <= set(colours):
            _crossover(axes, crossover)
    baselines = [curve for curve in shape.curves if curve.kind == "baseline"]
    for number, curve in enumerate(baselines):
        dashes = (0, DASHES[number % len(DASHES)])
        _line(axes, curve, color=BASELINE_COLOUR, linestyle=dashes, label=f"{curve.name} (baseline)")
    for curve in variants:
        _line(axes, curve, color=colours[curve.name], label=f"{curve.name}, best config")
    chosen = [(point.tokens, point.latency.median_us) for band in shape.bands for point in band.points]
    axes.plot(*zip(*chosen, strict=True), "o", mfc="none", mec=INK, mew=1.3, ms=9, ls="", label=PLAN_LABEL, zorder=5)
    hardware = plan.content.target.hardware
    ranks = f" world {shape.world}" if shape.world > 1 else ""
    axes.set_title(f"{operator} {shape.shape} {shape.dtype}{ranks}", loc="left", fontweight="bold", color=INK, pad=22)
    axes.text(
        0,
        1.035,
        f"{hardware['gpu']}, {plan.content.regime}, 95 % intervals; shaded: what the plan runs",
        transform=axes.transAxes,
        color=BASELINE_COLOUR,
        fontsize=9,
    )


def _style(axes: Axes, shape: ShapePlan) -> None:
    axes.set_xscale("log", base=2)
    # The outermost half steps show the bands that lie outside what was measured.
    axes.set_xlim(shape.measured_tokens[0] / 2**0.5, shape.measured_tokens[-1] * 2**0.5)
    ticks = [tokens for tokens in shape.measured_tokens if tokens & (tokens - 1) == 0] or list(shape.measured_tokens)
    axes.set_xticks(ticks, [str(tokens) for tokens in ticks])
    axes.set_xticks([t for t in shape.measured_tokens if t not in ticks], minor=True)
    axes.xaxis.set_minor_formatter("")
    slowest = max(point.latency.high_us for c in shape.curves if c.kind == "baseline" for point in c.points)
    fastest = min(point.latency.low_us for c in shape.curves if c.kind != "exporter" for point in c.points)
    if slowest > LOGARITHMIC * fastest:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(fastest / HEADROOM, HEADROOM * slowest)
    else:
        axes.set_ylim(0, HEADROOM * slowest)
    axes.set_xlabel("tokens", color=INK)
    axes.set_ylabel("µs a launch", color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(BASELINE_COLOUR)


def _shade(axes: Axes, shape: ShapePlan, colours: Mapping[str, str]) -> None:
    """One strip a band, cut halfway (on the logarithmic axis) between its last tokens and the next one's first.

    Neighbours that run the same variant, each with a config of its own, share a label.
    """
    left, right = axes.get_xlim()
    for name, bands in itertools.groupby(shape.bands, _name):
        colour = colours.get(name, BASELINE_COLOUR)
        strips = [strip for band in bands if (strip := _strip(band, left, right))]
        for start, end in strips:
            axes.axvspan(start, end, color=colour, alpha=0.1, linewidth=0, zorder=0)
            axes.axvline(start, color="white", linewidth=1.5, zorder=1)
        if strips and strips[-1][1] / strips[0][0] > 1.25:
            axes.text(
                (strips[0][0] * strips[-1][1]) ** 0.5,
                0.02,
                name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                color=colour,
                fontsize=9,
            )


def _name(band: Band) -> str:
    return band.decision.variant if band.decision.kind == "config" else "stock"


def _strip(band: Band, left: float, right: float) -> tuple[float, float] | None:
    """Where the axis shows a band; None where it does not."""
    start = (band.tokens_lo * (band.tokens_lo - 1)) ** 0.5 or left
    end = right if band.tokens_hi is None else (band.tokens_hi * (band.tokens_hi + 1)) ** 0.5
    start, end = max(start, left), min(end, right)
    return (start, end) if start < end else None


def _crossover(axes: Axes, crossover: Crossover) -> None:
    """Its interval hatched, with the estimate as a line; nothing where the two never change sides."""
    if crossover.kind == "never":
        return
    start, end = crossover.tokens_lo, crossover.tokens_hi
    axes.axvspan(start, end, facecolor="none", edgecolor=INK, hatch="////", alpha=0.25, linewidth=0, zorder=2)
    text = f"{crossover.kind} {start}-{end}"
    if crossover.estimate_tokens is not None:
        axes.axvline(crossover.estimate_tokens, color=INK, linewidth=1, linestyle=":", zorder=2)
        text = f"crossover near {crossover.estimate_tokens:g} ({start}-{end})"
    if crossover.traffic is not None:
        text += f"\n{crossover.traffic.bytes_lo / 2**20:.3g}-{crossover.traffic.bytes_hi / 2**20:.3g} MiB one-shot"
    axes.text(
        (start * end) ** 0.5,
        0.97,
        text,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="top",
        color=INK,
        fontsize=8,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5},
        zorder=6,
    )


def _line(axes: Axes, curve: Curve, **style: Any) -> None:
    tokens = [point.tokens for point in curve.points]
    medians = [point.latency.median_us for point in curve.points]
    below = [point.latency.median_us - point.latency.low_us for point in curve.points]
    above = [point.latency.high_us - point.latency.median_us for point in curve.points]
    axes.errorbar(
        tokens, medians, yerr=[below, above], marker="o", ms=4, linewidth=1.8, capsize=3, elinewidth=1.2, **style
    )
