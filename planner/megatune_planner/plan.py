"""The plan: what a campaign's measurements mean, as one canonical JSON document.

The envelope holds the schema version, the digest and when the plan was made; ``content`` holds everything else, and
the digest covers exactly the canonical JSON of ``content``. Two plans made from the same measurements with the same
options are therefore the same plan, whenever and by whichever program version they were made.

Units are the same everywhere: tokens are rows of the decode step, both ends of an interval included; times are
microseconds a launch; sizes are bytes. Intervals are 95 % intervals of the median. Evidence is ids of measurements.
"""

from __future__ import annotations

from datetime import UTC
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self

from pydantic import Field
from pydantic import ValidationError
from pydantic import model_validator

from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_kernels.canonical import canonical_json
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target
from megatune_planner.band_schema import Band
from megatune_planner.band_schema import Curve
from megatune_planner.band_schema import NamedBand
from megatune_planner.crossover_schema import Crossover
from megatune_planner.gate import Gate
from megatune_planner.inputs import INPUTS
from megatune_planner.inputs import Input
from megatune_planner.objective import ANY
from megatune_planner.objective import Mix
from megatune_planner.reader import PlanError
from megatune_planner.reader import load
from megatune_planner.reader import shape_of
from megatune_planner.rules import Rule
from megatune_planner.schema import Part
from megatune_planner.schema import Share
from megatune_planner.schema import Sparse
from megatune_planner.schema import Tokens

UNITS = {
    "tokens": "rows of the decode step, both ends included",
    "time": "microseconds a launch",
    "interval": "95 % interval of the median",
    "bytes": "bytes",
    "gain": "share of the baseline's time that is saved",
    "ratio": "time of the variant above a crossover over that of the one below it, with its 95 % interval",
    "traffic": "bytes that each rank receives in a one-shot reduction: tokens x width x bytes an element x world",
    "evidence": "ids of measurements in the database that the plan was made from",
}


class Gap(Part):
    """Tokens that were measured, but not so that the plan can decide on them."""

    tokens: Tokens
    """Where."""
    reason: str
    """What is missing."""


class ShapePlan(Sparse):
    """What holds for one shape of an operator."""

    MAY_LACK = ("mix",)

    shape: str
    """The dims as a key, sorted by name."""
    dims: dict[str, int]
    """Elements."""
    dtype: str
    """Of the operands."""
    world: Annotated[int, Field(ge=1)]
    """Ranks that take part in one launch."""
    routing: str
    """How tokens are spread over experts; ``none`` where there are none, and ``any`` where ``mix`` says which."""
    measured_tokens: tuple[Tokens, ...]
    """Where a baseline was measured, ascending."""
    gaps: tuple[Gap, ...]
    """What a further campaign should measure."""
    curves: tuple[Curve, ...]
    """Of what was measured, at the measured tokens."""
    bands: Annotated[tuple[Band, ...], Field(min_length=1)]
    """Ascending and tiling: the first begins at 1, the last has no end."""
    crossovers: tuple[Crossover, ...]
    """Of every two variants, and of a variant and a baseline that serve in neighbouring bands."""
    revision: str
    """Digest of the source of the kernels that were measured; empty where that is not known."""
    mix: Mix | None = None
    """What each figure stands for, where the shape was decided for several routings at once; else absent."""

    @property
    def fastest_baselines(self) -> tuple[str, ...]:
        """What the decisions are compared with: at each number of tokens the fastest that worked."""
        return tuple(sorted({point.baseline for band in self.bands for point in band.points}))

    @model_validator(mode="after")
    def _mixed(self) -> Self:
        if (self.mix is not None) != (self.routing == ANY):
            raise ValueError(f"{self.shape}: the routing is {ANY!r} where a mix says of which, and nowhere else")
        wanted = () if self.mix is None else self.mix.routings
        if any(tuple(at.routing for at in point.routings) != wanted for band in self.bands for point in band.points):
            raise ValueError(f"{self.shape}: points have figures of each routing of the mix, and of no other")
        return self

    @model_validator(mode="after")
    def _tiled(self) -> Self:
        if self.shape != shape_of(self.dims):
            raise ValueError(f"{self.shape}: it is no key of its dims, which is {shape_of(self.dims)}")
        expected: int | None = 1
        for band in self.bands:
            if band.tokens_lo != expected:
                raise ValueError(f"{self.shape}: bands must tile the tokens, but one begins at {band.tokens_lo}")
            expected = None if band.tokens_hi is None else band.tokens_hi + 1
        if expected is not None or self.bands[-1].decision.kind != "stock":
            raise ValueError(f"{self.shape}: the last band must have no end and say stock")
        if not self.measured_tokens or self.measured_tokens != tuple(p.tokens for b in self.bands for p in b.points):
            raise ValueError(f"{self.shape}: the measured tokens are not those of the bands' points")
        return self

    @property
    def key(self) -> tuple[str, str, int, str]:
        return (self.shape, self.dtype, self.world, self.routing)

    def band(self, tokens: int) -> Band:
        """The band that covers these tokens (at least 1)."""
        return next(band for band in self.bands if band.covers(tokens))

    def curve(self, kind: str, name: str) -> Curve | None:
        return next((curve for curve in self.curves if (curve.kind, curve.name) == (kind, name)), None)


class OperatorPlan(Part):
    """What holds for one operator."""

    name: str
    """Of the operator."""
    baselines: tuple[str, ...]
    """Names of what serves today; of emulated ranks, which have none, of the variants that stood in."""
    shapes: Annotated[tuple[ShapePlan, ...], Field(min_length=1)]
    """Each (shape, dtype, world, routing) once."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({shape.key for shape in self.shapes}) != len(self.shapes):
            raise ValueError(f"{self.name}: two shapes have the same key")
        return self


class PlanTarget(Part):
    """What the plan holds for."""

    digest: str
    """Of hardware and toolchain."""
    hardware: dict[str, Any]
    """The part that is bought."""
    toolchain: dict[str, Any]
    """The part that is installed."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if Target.from_dict(self.model_dump(exclude={"digest"})).digest != self.digest:
            raise ValueError("the target's digest is not that of its fields")
        return self

    @property
    def fingerprint(self) -> Target:
        return Target.from_dict(self.model_dump(exclude={"digest"}))


class AskedObjective(Part):
    """What was to be chosen by over the routings of a shape."""

    kind: Literal["mean", "worst"]
    """As in the mix of a shape."""
    weights: dict[str, Annotated[float, Field(gt=0)]]
    """By routing; empty: all that a shape was measured at, alike."""


class PlanOptions(Sparse):
    """How the plan was made: with the same measurements, these give the same plan."""

    MAY_LACK = ("objective",)

    provenances: tuple[Provenance, ...]
    """What counted as evidence."""
    min_gain: Annotated[float, Field(ge=0, lt=1)]
    """A config serves only where it saves at least this share of the baseline's time."""
    tie_slack: Annotated[float, Field(ge=0, lt=1)]
    """A difference up to this share never decides, however significant."""
    config_cost_us: Annotated[float, Field(ge=0)]
    """What each further config of a shape must save of the expected latency."""
    traffic: dict[str, Annotated[float, Field(gt=0)]]
    """Weight of a step by its tokens; empty: every measured number of tokens weighs the same."""
    objective: AskedObjective | None = None
    """Absent where each routing has bands of its own."""


class Coverage(Part):
    """What the plan's figures rest on."""

    measurements: dict[Provenance, int]
    """Measurements in evidence, by provenance."""
    measured_share: Share
    """Share of the tokens from 1 to the largest measured, over all shapes, that were measured."""
    predicted_share: Share
    """The rest of these tokens."""


class UnrepeatableBand(NamedBand):
    """A band that other seeds decide otherwise, and not within a tie."""

    tokens: Annotated[tuple[Tokens, ...], Field(min_length=1)]
    """Where other seeds decide otherwise."""
    reason: str
    """By how much, in one line."""


class Repeatability(Part):
    """What came of running the campaign again with other seeds."""

    seeds: Annotated[tuple[int, ...], Field(min_length=2)]
    """Of the sampler; the first is the plan's own."""
    provenance: Provenance
    """Of the measurements; ``replayed`` says how searches differ, and nothing of how measurements do."""
    decisions: Annotated[int, Field(ge=1)]
    """That were compared: shapes and measured tokens times repeats."""
    flips: Annotated[int, Field(ge=0)]
    """Decisions that another seed took otherwise."""
    flips_beyond_ties: Annotated[int, Field(ge=0)]
    """Those of them whose two choices differ by more than the noise when both are measured in one session."""
    flip_rate: Share
    """``flips`` over ``decisions``."""
    regret: Annotated[float, Field(ge=0)]
    """Share of the time that the plan's choices lose against the best of all runs, weighted by time and traffic."""
    bands: tuple[UnrepeatableBand, ...]
    """That are not repeatable."""


class Content(Sparse):
    """Everything that the digest covers."""

    MAY_LACK = ("repeatability",)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """For people; several plans may share one."""
    parent: str | None
    """Digest of the plan that this one replaces; None where it replaces none."""
    target: PlanTarget
    """What was measured on."""
    gate: Gate
    """What the plan holds for."""
    regime: str
    """Conditions of every measurement in evidence, e.g. ``cold-graph``."""
    units: dict[str, str]
    """Of every figure in the plan."""
    options: PlanOptions
    """How the plan was made."""
    operators: Annotated[tuple[OperatorPlan, ...], Field(min_length=1)]
    """Each operator once."""
    inputs: dict[str, Input]
    """What rules may read, what of it all ranks share, and what is frozen when a graph is captured."""
    fallback: Annotated[tuple[Rule, ...], Field(min_length=1)]
    """Evaluated top down; the first rule that holds decides."""
    coverage: Coverage
    """What the figures rest on."""
    repeatability: Repeatability | None = None
    """Absent where the campaign was not run again."""

    @model_validator(mode="after")
    def _closed(self) -> Self:
        Regime.parse(self.regime)
        last = self.fallback[-1]
        if last.when != "otherwise" or last.then != "stock":
            raise ValueError("the last fallback rule must be 'otherwise', and stock")
        if self.inputs != INPUTS:
            raise ValueError("the inputs are not those of this schema version")
        if self.units != UNITS:
            raise ValueError("the units are not those of this schema version")
        return self


class Created(Part):
    """Who made the plan; outside the digest."""

    at: str
    """UTC, ISO 8601."""
    by: str
    """Program and version."""


class Signature(Part):
    """Says that who holds a private key vouches for the content; see ``signing.py``."""

    algorithm: Literal["ed25519"] = "ed25519"
    """RFC 8032, over the bytes of ``reader.signed_bytes``."""
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The public key, hexadecimal. It proves nothing: a reader is given the key that it trusts."""
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
    """The signature, hexadecimal."""


class Plan(Part):
    """A plan with its digest."""

    format: Literal["megatune-plan"] = "megatune-plan"
    """Says that the file is a plan."""
    schema_version: Literal[3] = 3
    """Of envelope and content."""
    digest: str
    """Of the canonical JSON of ``content`` alone."""
    created: Created
    """When and by what; outside the digest."""
    signature: Signature | None = None
    """Of the content; outside the digest."""
    content: Content
    """Everything else; inside the digest."""

    @model_validator(mode="after")
    def _unchanged(self) -> Self:
        if digest(self.content.model_dump(mode="json")) != self.digest:
            raise ValueError("the digest is not that of the content")
        return self

    @staticmethod
    def of(content: Content) -> Plan:
        """The plan with this content, made now by this program."""
        return Plan(
            digest=digest(content.model_dump(mode="json")),
            created=Created(
                at=datetime.now(UTC).isoformat(timespec="seconds"),
                by=f"megatune {version('megatune')}",
            ),
            content=content,
        )

    def to_json(self) -> str:
        """Canonical JSON with a line feed at its end."""
        return canonical_json(self.model_dump(mode="json")) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """:raises MegatuneError: when the text is no plan, of another schema version, or changed since it was made."""
        try:
            # The embedded reader has the first word on what a plan is: what it refuses is never approved.
            if not text.lstrip().startswith("{"):  # the reader would take it for a path
                raise MegatuneError("not a plan: its text does not begin with a brace")
            load(text, target=None)
            return Plan.model_validate_json(text)
        except PlanError as error:
            raise MegatuneError(str(error)) from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            # A text of the file may be in the message, with its line feeds.
            says = " ".join(f"{where + ': ' if where else ''}{first['msg']}".split())
            raise MegatuneError(f"not a plan: {says}{more}") from None

    @staticmethod
    def load(path: Path) -> Plan:
        """:raises MegatuneError: naming the file, for whatever keeps it from being read as a plan."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise MegatuneError(f"cannot read the plan {path}: {why}") from None
        try:
            return Plan.from_json(text)
        except MegatuneError as error:
            raise MegatuneError(f"{path}: {error}") from None

    def operator(self, name: str) -> OperatorPlan:
        """:raises MegatuneError: when the plan has no such operator, with those it has."""
        for operator in self.content.operators:
            if operator.name == name:
                return operator
        known = ", ".join(operator.name for operator in self.content.operators)
        raise MegatuneError(f"the plan has no operator {name!r}; it has {known}")
