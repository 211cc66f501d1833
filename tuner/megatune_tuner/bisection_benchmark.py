"""How near a campaign's bisection comes to a sweep over every whole number of tokens, and for what share of its
measurements: from recordings that hold the sweep around each crossover (``record.around_crossovers``).

The campaign is a real one over the tokens whose space was recorded. It knows that space, because what a search misses
is another matter, and replays what it measures between. The sweep compares the recorded finalists of every cell.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatune_db.session import open_database
from megatune_kernels.figures import Figure
from megatune_kernels.operator import Workload
from megatune_kernels.target import architecture_of
from megatune_tuner.benchmark import sampled_cells
from megatune_tuner.bisection import Crossover
from megatune_tuner.bisection import Finals
from megatune_tuner.bisection import crossovers
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.ledger import Ledger
from megatune_tuner.recording_import import import_recording
from megatune_tuner.recordings import Recording
from megatune_tuner.runners.replay import ReplayRunner
from megatune_tuner.transactions import Transactions

NEAR = 0.05
"""Share of its tokens, or one token, within which two crossovers are the same."""
SHARE_GOAL = 0.25

APART = "crossovers: bisection off the sweep"
COST = "crossovers: share of the sweep's measurements"


@dataclass(frozen=True)
class Place:
    """Where one variant or baseline gives way to another: one crossover, or several that noise made of it."""

    below: str
    above: str
    low: int
    high: int
    """The most tokens at which ``below`` is faster, and the fewest from which ``above`` is, beyond the noise."""
    tokens: float
    """Estimated."""


@dataclass(frozen=True)
class Bisected:
    """One crossover as both found it, and what each measured of its shape."""

    shape: Workload
    """At 0 tokens."""
    found: Place | None
    """By bisection; None: missed."""
    sweep: Place | None
    """None: there is none."""
    measured: int
    """Cells whose finalists the campaign compared, the listed ones included."""
    swept: int
    """Those that a sweep compares: every whole number from the least to the most listed tokens. A cell takes the same
    measurements in both: of its neighbours' best configs and of the baselines."""

    @property
    def share(self) -> float:
        return self.measured / self.swept

    @property
    def off(self) -> float:
        """Share of the sweep's tokens by which bisection is off; 0 up to one token, infinite where one found none."""
        if self.found is None or self.sweep is None:
            return math.inf
        tokens = abs(self.found.tokens - self.sweep.tokens)
        return tokens / self.sweep.tokens if tokens > 1 else 0.0


def bisected(recording: Recording) -> list[Bisected]:
    """Every crossover of the shapes that are recorded beside the listed tokens too, by bisection and by the sweep.

    Where the recording ended before its sweep had every number of tokens at which neither side is faster beyond the
    noise, there is nothing to compare with.

    :raises MegatuneError: when the recording's operator is not registered.
    """
    listed: dict[Workload, list[Workload]] = {}
    for workload in sampled_cells(recording):
        listed.setdefault(workload.at(0), []).append(workload)
    beside = [workload for workload in recording.workloads if workload not in listed[workload.at(0)]]
    return [
        one
        for shape in dict.fromkeys(workload.at(0) for workload in beside)
        for one in _bisected(recording, listed[shape], [cell for cell in beside if cell.at(0) == shape])
    ]


def places(found: Iterable[Crossover]) -> list[Place]:
    """Crossovers of the same two that are nearer to each other than ``NEAR``, or one token, are one place, or none
    where they cancel out."""
    runs: list[list[Crossover]] = []
    for one in sorted(found, key=lambda one: (*sorted((one.below, one.above)), one.low)):
        last = runs[-1][-1] if runs else None
        same = last is not None and {last.below, last.above} == {one.below, one.above}
        if last is not None and same and one.low - last.high <= max(1, NEAR * last.high):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [
        Place(run[0].below, run[-1].above, run[0].low, run[-1].high, run[len(run) // 2].tokens)
        for run in runs
        if len(run) % 2
    ]


def bisection_figures(results: Sequence[Bisected], how: str) -> list[Figure]:
    """The farthest that bisection is off a sweep, and the largest share of its measurements that it takes.

    :param how: which recordings the results are of; without results, why there are none.
    """
    off = max((one.off for one in results), default=None)
    share = max((one.share for one in results), default=None)
    goals = (f"<= {NEAR:.0%} or one token", f"<= {SHARE_GOAL:.0%}")
    if off is None or share is None:
        return [
            Figure(name, None, "%", goal, None, "replayed", how)
            for name, goal in zip((APART, COST), goals, strict=True)
        ]
    known = f"worst of {len(results)}; {how}"
    missed = f"a crossover that only one of them has; {known}"
    return [
        Figure(
            APART,
            100 * off if math.isfinite(off) else None,
            "%",
            goals[0],
            off <= NEAR,
            "replayed",
            known if math.isfinite(off) else missed,
        ),
        Figure(COST, 100 * share, "%", goals[1], share <= SHARE_GOAL, "replayed", known),
    ]


def _bisected(recording: Recording, listed: Sequence[Workload], beside: Sequence[Workload]) -> Iterator[Bisected]:
    asked = _campaign(recording, listed)
    runner = ReplayRunner(recording)
    arch = architecture_of(runner.target.hardware)
    with tempfile.TemporaryDirectory() as folder, open_database(Path(folder) / "bisection.db") as database:
        with database.session() as session:
            import_recording(session, recording, workloads=listed)
        run_campaign(asked, runner, database, configs=recording.configs)
        ledger = Ledger(Transactions(database), asked, runner.target, runner.provenance)
        measured = [cell for cell in (*listed, *beside) if ledger.trials(cell)]
        told = crossovers({cell: ledger.finals(cell, asked.space_at(cell, arch)) for cell in measured})
    full = crossovers({cell: _recorded(recording, cell) for cell in (*listed, *beside)})
    tokens = [cell.tokens for cell in listed]
    swept = max(tokens) - min(tokens) + 1
    recorded = {cell.tokens for cell in (*listed, *beside)}
    for found, sweep in _matched(places(told), places(full)):
        if sweep is None or recorded.issuperset(range(sweep.low, sweep.high + 1)):
            yield Bisected(listed[0].at(0), found, sweep, len(measured), swept)


def _campaign(recording: Recording, listed: Sequence[Workload]) -> Campaign:
    """One that has nothing left to search, and looks for crossovers."""
    shape, regime = listed[0], recording.about.regime
    dims = "\n".join(f"{name} = {size}" for name, size in shape.dims)
    return parse_campaign(
        f"""
        name = "bisection"
        tokens = {sorted(cell.tokens for cell in listed)}
        regime = {{weights = "{regime.weights}", execution = "{regime.execution}"}}
        budget.trials = 1
        sampler.kind = "random"
        crossovers.refine = true
        runner = {{kind = "replay", recording = "{recording.name}"}}
        [[shapes]]
        operator = "{shape.operator}"
        dtype = "{shape.dtype}"
        world = {shape.world}
        {dims}
        """,
        source=recording.name,
    )


def _recorded(recording: Recording, workload: Workload) -> Finals:
    """The latest recorded session of finalists; empty without any."""
    sessions = recording.finals(workload)
    return {config: one.samples_us for config, one in sessions[-1].items() if one.samples_us} if sessions else {}


def _matched(found: Sequence[Place], sweep: Sequence[Place]) -> Iterator[tuple[Place | None, Place | None]]:
    """Each place of the sweep with the nearest found one of the same two, and what is left of both."""
    left = list(found)
    for place in sweep:
        same = [one for one in left if (one.below, one.above) == (place.below, place.above)]
        nearest = min(same, key=lambda one: abs(one.tokens - place.tokens), default=None)
        if nearest is not None:
            left.remove(nearest)
        yield nearest, place
    for one in left:
        yield one, None
