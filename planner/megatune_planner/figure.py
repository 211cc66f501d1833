"""Latency over tokens of one shape, as a picture. Needs matplotlib, which is imported here alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from megatune_kernels.errors import MegatuneError
from megatune_planner.plan import Curve
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
HEADROOM = 1.4
"""Of the axis over the slowest baseline: a variant far above it has lost, and would squash the rest."""


def latency_figure(plan: Plan, operator: str, shape: str, path: Path) -> None:
    """Draw the curves of one shape with their intervals over its bands, and write it in the format of the suffix.

    :param shape: as in the plan, e.g. ``k=7168,n=6288``.
    :raises MegatuneError: when the plan has no such shape, the format is unknown, or matplotlib is not installed.
    """
    found = [part for part in plan.operator(operator).shapes if part.shape == shape]
    if not found:
        known = "; ".join(part.shape for part in plan.operator(operator).shapes)
        raise MegatuneError(f"the plan has no shape {shape!r} of {operator}; it has {known}")
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MegatuneError("drawing needs matplotlib: install megatune[dev]") from None
    # SVG otherwise holds the date and random ids, and the same plan would give other bytes each time.
    with rc_context({"svg.hashsalt": plan.digest, "font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        if path.suffix.removeprefix(".") not in canvas.get_supported_filetypes():
            allowed = ", ".join(sorted(canvas.get_supported_filetypes()))
            raise MegatuneError(f"cannot draw {path.name}: the suffix must be one of {allowed}")
        axes = figure.add_subplot()
        _draw(axes, plan, operator, found[0])
        handles, labels = axes.get_legend_handles_labels()
        # Lines come before error bars, and the plan's circles are lines: last is where they belong.
        order = sorted(range(len(labels)), key=lambda index: labels[index] == PLAN_LABEL)
        figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="outside lower center",
            ncols=len(order),
            frameon=False,
            labelcolor=INK,
        )
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def _draw(axes: Axes, plan: Plan, operator: str, shape: ShapePlan) -> None:
    variants = [curve for curve in shape.curves if curve.kind == "variant"]
    colours = {curve.name: COLOURS[index % len(COLOURS)] for index, curve in enumerate(variants)}
    _style(axes, shape)
    _shade(axes, shape, colours)
    for curve in shape.curves:
        if curve.kind == "baseline":
            _line(axes, curve, color=BASELINE_COLOUR, linestyle=(0, (5, 2)), label=f"{curve.name} (baseline)")
    for curve in variants:
        _line(axes, curve, color=colours[curve.name], label=f"{curve.name}, best config")
    chosen = [(point.tokens, point.latency.median_us) for band in shape.bands for point in band.points]
    axes.plot(*zip(*chosen, strict=True), "o", mfc="none", mec=INK, mew=1.3, ms=9, ls="", label=PLAN_LABEL, zorder=5)
    hardware = plan.content.target.hardware
    axes.set_title(f"{operator} {shape.shape} {shape.dtype}", loc="left", fontweight="bold", color=INK, pad=22)
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
    axes.set_ylim(0, HEADROOM * slowest)
    axes.set_xlabel("tokens", color=INK)
    axes.set_ylabel("µs a launch", color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(BASELINE_COLOUR)


def _shade(axes: Axes, shape: ShapePlan, colours: Mapping[str, str]) -> None:
    """One strip a band, cut halfway (on the logarithmic axis) between its last tokens and the next one's first."""
    left, right = axes.get_xlim()
    for band in shape.bands:
        start = (band.tokens_lo * (band.tokens_lo - 1)) ** 0.5 or left
        end = right if band.tokens_hi is None else (band.tokens_hi * (band.tokens_hi + 1)) ** 0.5
        start, end = max(start, left), min(end, right)
        if start >= end:
            continue
        name = band.decision.variant if band.decision.kind == "config" else "stock"
        colour = colours.get(name, BASELINE_COLOUR)
        axes.axvspan(start, end, color=colour, alpha=0.1, linewidth=0, zorder=0)
        axes.axvline(start, color="white", linewidth=1.5, zorder=1)
        if end / start > 1.25:
            axes.text(
                (start * end) ** 0.5,
                0.02,
                name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                color=colour,
                fontsize=9,
            )


def _line(axes: Axes, curve: Curve, **style: Any) -> None:
    tokens = [point.tokens for point in curve.points]
    medians = [point.latency.median_us for point in curve.points]
    below = [point.latency.median_us - point.latency.low_us for point in curve.points]
    above = [point.latency.high_us - point.latency.median_us for point in curve.points]
    axes.errorbar(
        tokens, medians, yerr=[below, above], marker="o", ms=4, linewidth=1.8, capsize=3, elinewidth=1.2, **style
    )
