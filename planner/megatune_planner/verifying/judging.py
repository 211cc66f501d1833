"""Whether a plan holds, from what was measured again.

**Pairs.** What is compared was interleaved in one session, so sample i pairs with sample i, and the interval of the
median of the ratios is a distribution-free one of order statistics (David and Nagaraja, Order Statistics, section 7.1).
A replay of measurements that were not interleaved compares by two intervals, each as sure as both have to be together.

**Holding is shown, not assumed.** A difference that is not significant shows nothing; so the choice has to be shown not
to be slower by more than a margin (a test of non-inferiority, half of the two one-sided tests of Schuirmann 1987): the
upper end of the 95 % interval of time of the choice over time of the other lies at or below 1 + margin. The plan holds
where all comparisons do. To claim all at once needs no correction, because all of them have to be shown (an
intersection-union test, Berger 1982).

**Against rivals** a ratio may be what it was: a plan takes a choice that is slower than the fastest where a further
config would not be worth it. And at tokens that were not measured then, where a band reaches by prediction, the plan
claims no more than not to be slower than its baseline: a rival that is faster there is a gain to be had, and no drift.
So is a rival that was not measured there then, where the database of the plan's measurements says so.

**Drift is shown too.** It is claimed where the lower end lies above 1 + margin. Where one of many comparisons is enough
for an alarm, chance gets many tries; so this interval is widened such that all of them hold at once with 95 %
(Bonferroni). Between the two it cannot be told.

The margin is twice the width to which sampling narrows the interval of a median. Canaries are compared across sessions
with a wider one: of 2684 configs of the recording kimi-k3-h200 that were measured both to search and among finalists,
95 % of the ratios lie within -1.6 % and +2.4 %, and 99 % within -2.9 % and +4.0 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from megatune_db.records import APART
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import CONFIDENCE
from megatune_kernels.statistics import Interval
from megatune_kernels.statistics import least_count
from megatune_kernels.statistics import median_interval
from megatune_kernels.statistics import paired_ratio
from megatune_kernels.target import Target
from megatune_planner.crossover_schema import Ratio
from megatune_planner.plan import Plan
from megatune_planner.plan import ShapePlan
from megatune_planner.rendering import decision_text
from megatune_planner.routings import at_routing
from megatune_planner.verifying.checks import BandEnd
from megatune_planner.verifying.checks import Canary
from megatune_planner.verifying.checks import Checks
from megatune_planner.verifying.checks import Rival
from megatune_planner.verifying.routings import joined
from megatune_planner.verifying.routings import wholly_measured
from megatune_planner.verifying.verification import BandVerdict
from megatune_planner.verifying.verification import CanaryVerdict
from megatune_planner.verifying.verification import Compared
from megatune_planner.verifying.verification import EndVerdict
from megatune_planner.verifying.verification import Machine
from megatune_planner.verifying.verification import Verdict
from megatune_planner.verifying.verification import Verification
from megatune_planner.verifying.verification import worst

MARGIN = 0.02
"""Share of the time by which a choice may be slower, unless it is said otherwise."""
CANARY_MARGIN = 0.05
"""Share of a canary's time by which two sessions of one machine may differ."""
UNKNOWN = (Status.COMPILE_TIMEOUT,)
"""Statuses that say nothing of whether a config still works."""


@dataclass(frozen=True)
class Again:
    """A config that was measured again."""

    id: int | None
    """Of the row; None where it is not kept."""
    measurement: Measurement
    behind: tuple[int, ...] = ()
    """Ids of the rows that it was made of, where it stands for several routings."""

    @property
    def ids(self) -> tuple[int, ...]:
        return self.behind if self.id is None else (self.id,)


Measured = Mapping[tuple[Workload, Config], Again]
Then = Mapping[tuple[Workload, Config], float | None]
"""Microseconds when the plan was made, beside what the plan says; None of what was not measured then."""


def judge(
    plan: Plan,
    checks: Checks,
    measured: Measured,
    target: Target,
    provenance: Provenance,
    at: datetime,
    *,
    margin: float = MARGIN,
    recording: str | None = None,
    then: Then | None = None,
) -> Verification:
    """What the measurements say of the plan.

    :param measured: of ``checks.to_measure``; what is missing was not measured.
    :param target: what was measured on: hardware as ``checks.check_hardware`` demands, with any toolchain.
    :param provenance: of all of them.
    :param at: when, UTC without a time zone.
    :param recording: what was replayed, if so.
    :param then: as ``keeping.times_then`` finds it; None where no database has what the plan was made of.
    """
    known = then or {}
    count = sum(
        _allowed(band_end, rival, margin, known) is not None for band_end in checks.ends for rival in band_end.rivals
    )
    judging = _Judging(_with_joined(measured, checks), margin, count, recording is not None, known)
    by_band: dict[tuple[object, ...], list[EndVerdict]] = {}
    for band_end in checks.ends:
        key = (band_end.operator, *band_end.shape.key, band_end.band.tokens_lo)
        by_band.setdefault(key, []).append(judging.band_end(band_end))
    bands = tuple(_bands(plan, by_band))
    verdict = worst([band.verdict for band in bands])
    revisions = _revisions(measured)
    return Verification(
        plan=plan.digest,
        name=plan.content.name,
        target=target.digest,
        hardware=target.to_dict()["hardware"],
        toolchain=target.to_dict()["toolchain"],
        changed=_changed(plan, target, revisions),
        revisions=revisions,
        provenance=provenance,
        recording=recording,
        at=at.isoformat(timespec="seconds"),
        margin=margin,
        comparisons=judging.comparisons,
        verdict=verdict,
        reason=_reason(verdict, bands),
        machine=judging.machine(checks.canaries),
        bands=bands,
    )


def _with_joined(measured: Measured, checks: Checks) -> Measured:
    """And what stands for several routings."""
    found = dict(measured)
    for workload, config, places in wholly_measured(measured, checks.mixes):
        parts = [measured[place, config] for place in places]
        one = joined(workload, checks.mixes, [each.measurement for each in parts])
        found[workload, config] = Again(None, one, tuple(id_ for each in parts for id_ in each.ids))
    return found


@dataclass(frozen=True)
class _Judging:
    measured: Measured
    margin: float
    comparisons: int
    is_replay: bool
    then: Then

    @property
    def sure(self) -> float:
        """The confidence of one comparison with which all hold at once."""
        return 1 - (1 - CONFIDENCE) / max(1, self.comparisons)

    def band_end(self, band_end: BandEnd) -> EndVerdict:
        mine = None if band_end.choice is None else self.measured.get((band_end.workload, band_end.choice))
        compared: tuple[Compared, ...] = ()
        verdict, reason = self._works(mine)
        if mine is not None and verdict is Verdict.HOLDS:
            compared = tuple(self._compare(band_end, mine, rival) for rival in band_end.rivals)
            verdict, reason = _of_end(compared)
        now = None if mine is None else mine.measurement.median_us
        found = [mine, *(self.measured.get((band_end.workload, rival.config)) for rival in band_end.rivals)]
        return EndVerdict(
            end=band_end.end,
            tokens=band_end.workload.tokens,
            verdict=verdict,
            reason=reason,
            now_us=now,
            then_us=_then(band_end.shape, band_end.workload.tokens, band_end.choice),
            compared=compared,
            evidence=tuple(sorted(id_ for each in found if each is not None for id_ in each.ids)),
        )

    def _works(self, again: Again | None) -> tuple[Verdict, str]:
        """Whether a choice still does what it did, and why not."""
        if again is None:
            return Verdict.CANNOT_TELL, "it was not measured"
        found = again.measurement
        if found.status is Status.OK:
            return Verdict.HOLDS, ""
        # What a recording does not hold is infeasible there, which says nothing of the target.
        unknown = found.status in UNKNOWN or (found.status is Status.INFEASIBLE and self.is_replay)
        text = f"{found.status}: {found.reason}"
        return (Verdict.CANNOT_TELL, text) if unknown else (Verdict.DRIFTED, f"its choice works no more: {text}")

    def _compare(self, band_end: BandEnd, mine: Again, rival: Rival) -> Compared:
        other = self.measured.get((band_end.workload, rival.config))
        now = beyond = None
        pairs, reason = 0, ""
        verdict = Verdict.CANNOT_TELL
        allowed = _allowed(band_end, rival, self.margin, self.then)
        if other is not None and other.measurement.status is Status.OK:
            now, beyond, pairs = compare(mine.measurement, other.measurement, self.sure)
            count = min(len(mine.measurement.samples_us), len(other.measurement.samples_us))
            verdict, reason = self._verdict(now, beyond, pairs, count, allowed)
        elif rival.kind == "baseline":
            how = "was not measured" if other is None else f"ended {other.measurement.status}"
            reason = f"the baseline {rival.config.variant} {how}"
        else:
            # What does not work can be no better choice.
            verdict = Verdict.HOLDS
        tokens = band_end.workload.tokens
        times = (_then(band_end.shape, tokens, band_end.choice), _rival_then(band_end, rival, self.then))
        return Compared(
            against=str(rival.config),
            kind=rival.kind,
            verdict=verdict,
            reason=reason,
            allowed=allowed,
            then=None if times[0] is None or times[1] is None else times[0] / times[1],
            now=_ratio(now),
            beyond_doubt=_ratio(beyond),
            pairs=pairs,
        )

    def _verdict(
        self, now: Interval | None, beyond: Interval | None, pairs: int, count: int, allowed: float | None
    ) -> tuple[Verdict, str]:
        """
        :param count: samples of each, those of the one that has fewer.
        """
        if allowed is None:
            if now is None or beyond is None or beyond.low <= 1 + self.margin:
                return Verdict.HOLDS, ""
            return Verdict.HOLDS, f"saves {1 - 1 / now.median:.1%} where nothing was measured before"
        if now is not None and now.high <= allowed:
            return Verdict.HOLDS, ""
        if beyond is not None and beyond.low > allowed:
            return Verdict.DRIFTED, ""
        if beyond is None:
            what = "pairs" if pairs else "samples"
            least = least_count(self.sure if pairs else _each(self.sure))
            return Verdict.CANNOT_TELL, f"too few samples: {least} {what} can show drift, not {count}"
        return Verdict.CANNOT_TELL, "the difference is within the noise"

    def machine(self, canaries: Sequence[Canary]) -> Machine:
        found = tuple(self._canary(canary, len(canaries)) for canary in canaries)
        counts = Counter(canary.verdict for canary in found)
        drifted, holding = counts[Verdict.DRIFTED], counts[Verdict.HOLDS]
        ratios = sorted(canary.ratio.median - 1 for canary in found if canary.ratio is not None)
        if drifted:
            verdict = Verdict.DRIFTED
            reason = f"{drifted} of {len(found)} canaries changed, so that the plan's microseconds are not today's"
        elif 2 * holding > len(found):
            verdict = Verdict.HOLDS
            reason = f"{holding} of {len(found)} canaries take what they took, within {CANARY_MARGIN:.0%}"
        else:
            verdict = Verdict.CANNOT_TELL
            reason = f"{holding} of {len(found)} canaries could be told"
        hot = sum(self._throttled(canary) for canary in canaries)
        if hot:
            reason += f"; the GPU was throttled at {hot} of them"
        if ratios:
            reason += f"; now against then: {ratios[0]:+.1%} to {ratios[-1]:+.1%}"
        return Machine(verdict=verdict, reason=reason, margin=CANARY_MARGIN, canaries=found)

    def _throttled(self, canary: Canary) -> bool:
        again = self.measured.get((canary.workload, canary.config))
        return again is not None and any(again.measurement.throttled)

    def _canary(self, canary: Canary, count: int) -> CanaryVerdict:
        again = self.measured.get((canary.workload, canary.config))
        verdict, _ = self._works(again)
        ratio = None
        if again is not None and verdict is Verdict.HOLDS:
            sure = 1 - (1 - CONFIDENCE) / count
            now = median_interval(again.measurement.samples_us, sure)
            then = canary.then
            # Of the times then the plan has the interval alone, which is one of 95 %.
            ratio = Interval(now.median / then.median_us, now.low / then.high_us, now.high / then.low_us)
            if ratio.low >= 1 - CANARY_MARGIN and ratio.high <= 1 + CANARY_MARGIN:
                verdict = Verdict.HOLDS
            elif ratio.low > 1 + CANARY_MARGIN or ratio.high < 1 - CANARY_MARGIN:
                verdict = Verdict.DRIFTED
            else:
                verdict = Verdict.CANNOT_TELL
        return CanaryVerdict(
            workload=str(canary.workload),
            config=str(canary.config),
            then_us=canary.then.median_us,
            now_us=None if again is None else again.measurement.median_us,
            ratio=_ratio(ratio),
            verdict=verdict,
        )


def compare(mine: Measurement, other: Measurement, sure: float) -> tuple[Interval | None, Interval | None, int]:
    """Time of one over the other with its 95 % interval and with one that is as sure as is asked for, and the pairs.

    An interval is None where there are too few samples for it: a range of fewer holds less often than it says.

    :param sure: confidence, at least 95 %.
    """
    a, b = mine.samples_us, other.samples_us
    paired = mine.session == other.session and not mine.session.startswith(APART) and len(a) == len(b)
    if paired and len(a) >= least_count(CONFIDENCE):
        beyond = paired_ratio(a, b, sure) if len(a) >= least_count(sure) else None
        return paired_ratio(a, b), beyond, len(a)
    # Both intervals have to hold at once.
    now, beyond = (
        _apart(a, b, _each(confidence)) if min(len(a), len(b)) >= least_count(_each(confidence)) else None
        for confidence in (CONFIDENCE, sure)
    )
    return now, beyond, 0


def _each(confidence: float) -> float:
    """Of each of two intervals that hold at once with this confidence."""
    return 1 - (1 - confidence) / 2


def _apart(mine: Sequence[float], other: Sequence[float], each: float) -> Interval:
    a, b = median_interval(mine, each), median_interval(other, each)
    return Interval(a.median / b.median, a.low / b.high, a.high / b.low)


def _ratio(found: Interval | None) -> Ratio | None:
    return None if found is None else Ratio(median=found.median, low=found.low, high=found.high)


def _of_end(compared: Sequence[Compared]) -> tuple[Verdict, str]:
    verdict = worst([each.verdict for each in compared])
    if verdict is Verdict.HOLDS:
        return verdict, ""
    those = [each for each in compared if each.verdict is verdict]
    if verdict is Verdict.DRIFTED:
        return verdict, slower_text(max(those, key=lambda each: each.beyond_doubt.median if each.beyond_doubt else 0))
    return verdict, f"against {those[0].against}: {those[0].reason}"


def slower_text(found: Compared) -> str:
    """How much slower a choice is than what it was compared with, in words."""
    ratio = found.beyond_doubt
    if ratio is None:
        return f"against {found.against}: {found.reason}"
    then = "" if found.then is None else f"; then {found.then - 1:+.1%}"
    return (
        f"takes {ratio.median - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}) of the time of "
        f"{found.against}{then}"
    )


def _bands(plan: Plan, ends: Mapping[tuple[object, ...], Sequence[EndVerdict]]) -> Iterator[BandVerdict]:
    for each in plan.content.operators:
        for shape in each.shapes:
            for band in shape.bands:
                mine = tuple(ends.get((each.name, *shape.key, band.tokens_lo), ()))
                verdict = worst([band_end.verdict for band_end in mine])
                reason = "stock, which rests on no measurement" if not mine else ""
                for band_end in mine:
                    if not reason and band_end.verdict is verdict and band_end.reason:
                        reason = f"at {band_end.tokens} tokens: {band_end.reason}"
                yield BandVerdict(
                    operator=each.name,
                    shape=shape.shape,
                    dtype=shape.dtype,
                    world=shape.world,
                    routing=shape.routing,
                    tokens_lo=band.tokens_lo,
                    tokens_hi=band.tokens_hi,
                    decision=decision_text(band.decision),
                    verdict=verdict,
                    reason=reason or "not slower than anything that it was compared with, beyond the margin",
                    ends=mine,
                )


def _reason(verdict: Verdict, bands: Sequence[BandVerdict]) -> str:
    rest = [band for band in bands if band.ends]
    those = [band for band in rest if band.verdict is verdict]
    if verdict is Verdict.HOLDS:
        return f"all {len(rest)} bands that rest on measurements hold"
    first = those[0]
    hi = "+" if first.tokens_hi is None else "" if first.tokens_hi == first.tokens_lo else f"-{first.tokens_hi}"
    what = "drifted" if verdict is Verdict.DRIFTED else "cannot be told"
    shape = f"{first.operator} {first.shape}{at_routing(first.routing)}"
    where = f"{shape}, {first.tokens_lo}{hi} tokens ({first.decision})"
    return f"{len(those)} of {len(rest)} bands {what}; {where}: {first.reason}"


def _then(shape: ShapePlan, tokens: int, config: Config | None) -> float | None:
    """What the plan says that a config takes, in microseconds; None where it was not measured or is not kept."""
    if config is None:
        return None
    for curve in shape.curves:
        found = curve.at(tokens)
        if found is not None and found.config == config.digest:
            return found.latency.median_us
    for band in shape.bands:
        if band.decision.kind == "config" and band.decision.config == config.digest:
            for point in band.points:
                if point.tokens == tokens:
                    return point.latency.median_us
    return None


def _rival_then(band_end: BandEnd, rival: Rival, known: Then) -> float | None:
    """What a rival took when the plan was made, as the plan or a database says."""
    found = _then(band_end.shape, band_end.workload.tokens, rival.config)
    return known.get((band_end.workload, rival.config)) if found is None else found


def _allowed(band_end: BandEnd, rival: Rival, margin: float, known: Then) -> float | None:
    """What the ratio of a choice and a rival may be; None where nothing was known of them."""
    if rival.kind == "baseline":
        return 1 + margin
    tokens = band_end.workload.tokens
    mine = _then(band_end.shape, tokens, band_end.choice)
    if mine is None:
        return None
    theirs = _rival_then(band_end, rival, known)
    if theirs is None and (band_end.workload, rival.config) in known:
        return None
    if theirs is None:
        # If it was measured, it was no better than the best of its variant, of which the plan tells.
        best = band_end.shape.curve("variant", rival.config.variant)
        point = None if best is None else best.at(tokens)
        theirs = None if point is None else point.latency.median_us
    return (1 + margin) * max(1.0, 1.0 if theirs is None else mine / theirs)


def _revisions(measured: Measured) -> dict[str, str]:
    found = {
        workload.operator: again.measurement.revision
        for (workload, _), again in measured.items()
        if again.measurement.revision
    }
    return dict(sorted(found.items()))


def _changed(plan: Plan, target: Target, revisions: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    before, now = plan.content.target.toolchain, target.to_dict()["toolchain"]
    changed = {name: (str(before.get(name)), str(value)) for name, value in now.items() if before.get(name) != value}
    for each in plan.content.operators:
        was = {shape.revision for shape in each.shapes if shape.revision}
        revision = revisions.get(each.name)
        if revision is not None and was and was != {revision}:
            changed[f"kernels of {each.name}"] = (" and ".join(sorted(each[:12] for each in was)), revision[:12])
    return changed
