"""What the pages say of verifications: rows of tables and charts; nothing here draws on a page."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go
from pydantic import ValidationError

from megatune_dashboard.app import charts
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import shortened
from megatune_db.queries import RepeatRow
from megatune_db.queries import VerificationRow
from megatune_kernels.errors import MegatuneError
from megatune_planner.verifying.verification import BandVerdict
from megatune_planner.verifying.verification import CanaryVerdict
from megatune_planner.verifying.verification import EndVerdict
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification

SHORT = 12
"""Letters of a digest."""
LOOKS = {
    Verdict.HOLDS: (charts.COLOURS[2], "circle"),
    Verdict.CANNOT_TELL: (charts.COLOURS[1], "diamond-open"),
    Verdict.DRIFTED: (charts.LIMIT_COLOUR, "x"),
}
"""Colour and symbol of each verdict: told apart without colours too."""
NAME_LETTERS = 52
"""Of a canary in a legend."""
MOST_CANARIES = 16
"""Lines of the chart of canaries."""


def document(row: VerificationRow) -> Verification:
    """All that was compared.

    :raises MegatuneError: when another version of this program wrote it.
    """
    try:
        return _parsed(row.document)
    except ValidationError:
        raise MegatuneError(f"verification {row.id} is of another version of Megatune and cannot be read") from None


@lru_cache(maxsize=256)
def _parsed(text: str) -> Verification:
    return Verification.model_validate_json(text)


def verification_rows(rows: Iterable[VerificationRow]) -> list[dict[str, Any]]:
    """One row a verification."""
    return [
        {
            "when (UTC)": row.at,
            "plan": row.name,
            "digest of the plan": row.plan[:SHORT],
            "verdict": row.verdict,
            "why": row.reason,
            "provenance": str(row.provenance),
            "driver": row.toolchain.get("driver"),
            "who": row.who,
        }
        for row in rows
    ]


def timeline_figure(rows: Sequence[VerificationRow]) -> go.Figure:
    """Verdicts over time, a line for each plan."""
    names = list(dict.fromkeys(_plan(row) for row in rows))
    made = charts.figure()
    for verdict, (colour, symbol) in LOOKS.items():
        mine = [row for row in rows if row.verdict == verdict]
        if mine:
            made.add_scatter(
                x=[row.at for row in mine],
                y=[_plan(row) for row in mine],
                customdata=[[hover(row.reason), hover(row.who), str(row.provenance)] for row in mine],
                mode="markers",
                name=verdict.value,
                marker={"color": colour, "symbol": symbol, "size": 11},
                hovertemplate="%{x|%Y-%m-%d %H:%M} UTC: %{fullData.name}<br>%{customdata[0]}<br>%{customdata[2]}, by "
                "%{customdata[1]}<extra></extra>",
            )
    made.update_yaxes(automargin=True, categoryorder="array", categoryarray=names[::-1])
    charts.time_axis(made, [row.at for row in rows], len(made.data), 60 + 34 * len(names))
    return made


def band_rows(found: Verification) -> list[dict[str, Any]]:
    """One row for each end of each band; one where a band rests on no measurement."""
    rows = []
    for band in found.bands:
        for end in band.ends:
            rows.append(_band(band) | _end(end) | {"decision": band.decision, "why": end.reason or band.reason})
        if not band.ends:
            blank = dict.fromkeys(("at tokens", "then µs", "now µs", "time over the closest", "low", "high"))
            rows.append(
                _band(band) | {"verdict": band.verdict.value} | blank | {"decision": band.decision, "why": band.reason}
            )
    return rows


def _band(band: BandVerdict) -> dict[str, Any]:
    last = "+" if band.tokens_hi is None else f"-{band.tokens_hi}" if band.tokens_hi != band.tokens_lo else ""
    return {
        "operator": band.operator,
        "shape": band.shape,
        "world": band.world,
        **({} if band.routing == "none" else {"routing": band.routing}),
        "tokens": f"{band.tokens_lo}{last}",
    }


def _end(end: EndVerdict) -> dict[str, Any]:
    # Of what it was compared with, that which comes closest to being faster.
    closest = max((each.now for each in end.compared if each.now is not None), key=lambda r: r.high, default=None)
    return {
        "verdict": end.verdict.value,
        "at tokens": end.tokens,
        "then µs": end.then_us,
        "now µs": end.now_us,
        "time over the closest": None if closest is None else closest.median,
        "low": None if closest is None else closest.low,
        "high": None if closest is None else closest.high,
    }


def canary_rows(pairs: Iterable[tuple[VerificationRow, Verification]]) -> list[dict[str, Any]]:
    """One row for each canary of each verification."""
    return [
        {
            "when (UTC)": row.at,
            "plan": row.name,
            "workload": each.workload,
            "verdict": each.verdict.value,
            "then µs": each.then_us,
            "now µs": each.now_us,
            "now over then": None if each.ratio is None else each.ratio.median,
            "low": None if each.ratio is None else each.ratio.low,
            "high": None if each.ratio is None else each.ratio.high,
            "config": each.config,
        }
        for row, found in pairs
        for each in found.machine.canaries
    ]


def canaries_figure(pairs: Sequence[tuple[VerificationRow, Verification]]) -> go.Figure | None:
    """Each canary's time over that of the plan, over time, between the lines of what sessions may differ by; None where
    none has a figure."""
    found: dict[str, list[tuple[VerificationRow, CanaryVerdict]]] = {}
    for row, verification in reversed(pairs):
        for each in verification.machine.canaries:
            if each.ratio is not None:
                found.setdefault(f"{each.workload}, {each.config}", []).append((row, each))
    if not found:
        return None
    shown = dict(list(found.items())[:MOST_CANARIES])
    made = charts.figure()
    for place, points in enumerate(shown.values()):
        ratios = [(row, each, each.ratio) for row, each in points if each.ratio is not None]
        made.add_scatter(
            x=[row.at for row, _, _ in ratios],
            y=[100 * (ratio.median - 1) for _, _, ratio in ratios],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [100 * (ratio.high - ratio.median) for _, _, ratio in ratios],
                "arrayminus": [100 * (ratio.median - ratio.low) for _, _, ratio in ratios],
                "thickness": 1.2,
                "width": 3,
            },
            customdata=[[each.verdict.value, each.then_us, each.now_us, hover(row.name)] for row, each, _ in ratios],
            mode="lines+markers",
            name=hover(canary_name(points[0][1])),
            line={"color": charts.COLOURS[place % len(charts.COLOURS)]},
            hovertemplate="%{x|%Y-%m-%d %H:%M} UTC: %{y:+.2f} % (%{customdata[1]:.3f} to %{customdata[2]:.3f} µs)<br>"
            "%{customdata[0]}, of plan %{customdata[3]}<extra>%{fullData.name}</extra>",
        )
    margin = 100 * max(verification.machine.margin for _, verification in pairs)
    for edge in (-margin, margin):
        made.add_hline(y=edge, line={"color": charts.LIMIT_COLOUR, "width": 1, "dash": "dash"})
    made.add_hline(y=0, line={"color": charts.BASELINE_COLOUR, "width": 1})
    made.update_yaxes(title="slower than then, %")
    charts.time_axis(made, [row.at for points in shown.values() for row, _ in points], len(shown), 260)
    return made


def canary_name(canary: CanaryVerdict) -> str:
    """For a legend, of at most ``NAME_LETTERS``; of a long workload the end, where workloads differ."""
    if len(canary.workload) <= NAME_LETTERS:
        return shortened(f"{canary.workload}, {canary.config}", NAME_LETTERS)
    variant = canary.config.partition(" ")[0]
    return f"…{canary.workload[len(variant) + 3 - NAME_LETTERS :]}, {variant}"


def repeat_rows(rows: Iterable[RepeatRow]) -> list[dict[str, Any]]:
    """One row a campaign that was run again."""
    return [
        {
            "when (UTC)": row.at,
            "campaign": shortened(row.campaign),
            "runs with other seeds": row.repeats,
            "decisions that flipped %": 100 * row.flip_rate,
            "loses to the best of all %": 100 * row.regret,
            "regime": row.regime,
            "provenance": str(row.provenance),
            "who": row.who,
        }
        for row in rows
    ]


def _plan(row: VerificationRow) -> str:
    return hover(f"{shortened(row.name, 24)} · {row.plan[:6]}")
