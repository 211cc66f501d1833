"""Latency of a chain over the depth of its prefetch, as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_planner.depths import DepthCurve
from megatune_planner.figure import BASELINE_COLOUR
from megatune_planner.figure import COLOURS
from megatune_planner.figure import DASHES
from megatune_planner.figure import FAINT
from megatune_planner.figure import INK
from megatune_planner.figure import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIMUM_LABEL = "optimum"
HEADROOM = 1.1
"""Of the axis, over and under what is drawn."""


def depth_figure(curves: Sequence[DepthCurve], conditions: str, path: Path) -> None:
    """Draw the curves of one chain, one a number of tokens, with their intervals, and write it in the format of the
    suffix. Shaded is the interval of each optimum; a broken line is the chain without prefetch and programmatic launch.

    :param curves: as ``depths.depth_curves`` gives them; at most as many as there are colours.
    :param conditions: what was measured on and how, e.g. ``NVIDIA H200, cold-graph``.
    :raises MegatuneError: for curves of several chains or too many, an unknown format, or without matplotlib.
    :raises NothingMeasured: when there are no curves.
    """
    if not curves:
        raise NothingMeasured("no depth of a prefetch was measured: run a campaign of the operator prefetch first")
    shapes = {curve.workload.shape for curve in curves}
    if len(shapes) > 1 or len(curves) > len(COLOURS):
        raise MegatuneError(
            f"a picture has one chain and at most {len(COLOURS)} numbers of tokens, not {len(shapes)} and {len(curves)}"
        )
    with picture(path, f"{conditions} {curves[0].workload}", last=OPTIMUM_LABEL) as axes:
        _draw(axes, curves, conditions)


def _draw(axes: Axes, curves: Sequence[DepthCurve], conditions: str) -> None:
    for curve, colour in zip(curves, COLOURS, strict=False):
        _curve(axes, curve, colour)
    best = [(curve.best_mib, curve.at(curve.best_mib).candidate.median_us) for curve in curves]
    axes.plot(*zip(*best, strict=True), "o", mfc="none", mec=INK, mew=1.3, ms=9, ls="", label=OPTIMUM_LABEL, zorder=5)
    depths = sorted({point.depth_mib for curve in curves for point in curve.points})
    # Depths lie apart by factors, and 0 is among them.
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    ends = [curve.baseline for curve in curves if curve.baseline] + [p.candidate for c in curves for p in c.points]
    axes.set_ylim(min(each.low_us for each in ends) / HEADROOM, max(each.high_us for each in ends) * HEADROOM)
    axes.set_xlabel("depth in MiB; 0: no prefetch", color=INK)
    axes.set_ylabel("µs a chain", color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(BASELINE_COLOUR)
    axes.set_title(f"prefetch {curves[0].workload.shape}", loc="left", fontweight="bold", color=INK, pad=22)
    axes.text(
        0,
        1.035,
        f"{conditions}, best config of each depth, 95 % intervals; shaded: not told from the optimum",
        transform=axes.transAxes,
        color=BASELINE_COLOUR,
        fontsize=9,
    )


def _curve(axes: Axes, curve: DepthCurve, colour: str) -> None:
    tokens = curve.workload.tokens
    found = [point.candidate for point in curve.points]
    axes.errorbar(
        [point.depth_mib for point in curve.points],
        [each.median_us for each in found],
        yerr=[[each.median_us - each.low_us for each in found], [each.high_us - each.median_us for each in found]],
        marker="o",
        ms=4,
        linewidth=1.8,
        capsize=3,
        elinewidth=1.2,
        color=colour,
        label=f"{tokens} token{'s' if tokens > 1 else ''}",
    )
    if curve.baseline is not None:
        us = curve.baseline.median_us
        label = f"{curve.baseline.variant} (baseline), {tokens}"
        axes.axhline(us, color=colour, linestyle=(0, DASHES[0]), linewidth=1, alpha=0.7, label=label)
    if curve.low_mib < curve.high_mib:
        axes.axvspan(curve.low_mib, curve.high_mib, color=colour, alpha=0.1, linewidth=0, zorder=0)
