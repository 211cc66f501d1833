"""The document of a verification: what was measured again, what came of it, and how sure that is.

Times are microseconds a launch; a ratio is the time of the choice over that of what it is compared with, so that above
1 the choice is the slower one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import Field

from megatune_db.records import Provenance
from megatune_planner.band_schema import NamedBand
from megatune_planner.crossover_schema import Ratio
from megatune_planner.schema import MeasurementId
from megatune_planner.schema import Microseconds
from megatune_planner.schema import Part
from megatune_planner.schema import Share
from megatune_planner.schema import Tokens


class Verdict(StrEnum):
    """What a verification says of a comparison, a band or a plan."""

    HOLDS = "holds"
    DRIFTED = "drifted"
    CANNOT_TELL = "cannot tell"


def worst(verdicts: list[Verdict]) -> Verdict:
    """Of all: drifted where one has, else cannot tell where one cannot be told, else holds."""
    for verdict in (Verdict.DRIFTED, Verdict.CANNOT_TELL):
        if verdict in verdicts:
            return verdict
    return Verdict.HOLDS


class Compared(Part):
    """The choice of a band against one thing that it could have been."""

    against: str
    """The other's variant with its parameters, or the baseline's name."""
    kind: Literal["baseline", "neighbour", "variant"]
    """See ``checks.Rival``."""
    verdict: Verdict
    """``holds``: the ratio is within what is allowed; ``drifted``: it is not; else neither is shown."""
    reason: str
    """Why it cannot be told, or what could be gained; empty where there is nothing to say."""
    allowed: float | None
    """The most that the ratio may be: the margin over 1, and over what it was where the plan took a slower choice
    knowingly. None where nothing was known of the two, so that nothing can have drifted."""
    then: float | None
    """Ratio of the medians when the plan was made; None where one was not measured then."""
    now: Ratio | None
    """With its 95 % interval, which shows that the choice holds; None where one has no figures."""
    beyond_doubt: Ratio | None
    """With the interval that holds in all comparisons of the verification at once, which shows that it has drifted."""
    pairs: Annotated[int, Field(ge=0)]
    """Samples that were compared one by one; 0 where they were not interleaved."""


class EndVerdict(Part):
    """One end of a band."""

    end: Tokens
    """The band's first or last tokens."""
    tokens: Tokens
    """What was measured for it."""
    verdict: Verdict
    """The worst of the comparisons."""
    reason: str
    """Why, where it does not hold."""
    now_us: Microseconds | None
    """Median of the choice."""
    then_us: Microseconds | None
    """Median of the choice when the plan was made; None where these tokens were not measured then."""
    compared: tuple[Compared, ...]
    """With every baseline and rival that has figures, or had some when the plan was made."""
    evidence: tuple[MeasurementId, ...]
    """Of the verification."""


class BandVerdict(NamedBand):
    """One band."""

    decision: str
    """What serves, in words."""
    verdict: Verdict
    """The worst of its ends."""
    reason: str
    """In one line."""
    ends: tuple[EndVerdict, ...]
    """Empty for stock that rests on no measurement, which has nothing that could drift."""


class CanaryVerdict(Part):
    """A config away from the boundaries, now and then."""

    workload: str
    """In words."""
    config: str
    """In words."""
    then_us: Microseconds
    """Median when the plan was made."""
    now_us: Microseconds | None
    """Median now; None where it did not work."""
    ratio: Ratio | None
    """Now over then, with the interval that holds in all canaries at once; sessions differ, so these are no pairs."""
    verdict: Verdict
    """``holds``: within the margin of canaries; ``drifted``: outside; else neither is shown."""


class Machine(Part):
    """What the canaries say of the machine."""

    verdict: Verdict
    """``drifted``: it is another machine than then, so that figures of the plan are not today's."""
    reason: str
    """In one line."""
    margin: Share
    """Share of a canary's time that sessions may differ by."""
    canaries: tuple[CanaryVerdict, ...]
    """Each of them."""


class Verification(Part):
    """A plan, measured again."""

    format: Literal["megatune-verification"] = "megatune-verification"
    """Says what the document is."""
    schema_version: Literal[1] = 1
    """Of the document."""
    plan: str
    """Digest."""
    name: str
    """Of the plan."""
    target: str
    """Digest of what it was verified on."""
    hardware: dict[str, Any]
    """The part of it that is bought."""
    toolchain: dict[str, Any]
    """The part of it that is installed."""
    changed: dict[str, tuple[str, str]]
    """What differs from the toolchain that the plan was made on, before and now; and ``kernels of OPERATOR``."""
    revisions: dict[str, str]
    """Digest of the source of the kernels that were measured, by operator; none where kernels were not built."""
    provenance: Provenance
    """Of the measurements: ``measured`` on the target, ``emulated``, or ``replayed`` from a recording."""
    recording: str | None
    """What was replayed."""
    at: str
    """UTC, ISO 8601."""
    margin: Share
    """Share of the time by which a choice may be slower than what it is compared with."""
    comparisons: Annotated[int, Field(ge=0)]
    """How many can show drift, which its intervals are widened for."""
    verdict: Verdict
    """Of the plan: the worst of its bands."""
    reason: str
    """In one line."""
    machine: Machine
    """Beside the verdict, and no part of it: comparisons are within one session."""
    bands: tuple[BandVerdict, ...]
    """In the order of the plan."""

    @property
    def gains(self) -> list[tuple[BandVerdict, EndVerdict, Compared]]:
        """Where something is faster that was not known when the plan was made: what a campaign there would gain."""
        return [
            (band, band_end, each)
            for band in self.bands
            for band_end in band.ends
            for each in band_end.compared
            if each.allowed is None and each.reason
        ]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Bands by verdict."""
        return {verdict: sum(band.verdict is verdict for band in self.bands) for verdict in Verdict}
