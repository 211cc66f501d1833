"""The campaign file: a tuning run, declared in TOML.

.. code-block:: toml

    name = "kimi-k3-projections"
    operators = ["projection"]
    tokens = [1, 2, 4, 8, 16, 32, 64]

    [model]
    name = "Kimi-K3"
    tensor_parallel = 8

    [budget]
    trials = 32        # a cell

    [runner]
    kind = "gpu"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import PrivateAttr
from pydantic import StrictBool
from pydantic import StrictInt
from pydantic import StrictStr
from pydantic import ValidationError
from pydantic import model_validator

from megatune_db.records import Regime
from megatune_kernels.errors import MegatuneError
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.operator import operators
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.target import Architecture
from megatune_kernels.target import architecture
from megatune_tuner.objectives import objective_fault

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NAMES = "1 to 100 letters, digits, dots, dashes and underscores that begin with a letter or a digit"
EMULATED_WORLDS = range(2, 9)
"""Beyond, the share of a GPU that a rank has is too small for most configs."""
Positive = Annotated[StrictInt, Field(gt=0)]
NotNegative = Annotated[StrictInt, Field(ge=0)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Objective = Literal["mean", "worst"] | Annotated[dict[str, Weight], Field(min_length=2)]
Values = Annotated[tuple[StrictBool | StrictInt | StrictStr, ...], Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelTable(_Table):
    """Shapes from the catalogue of real architectures."""

    name: str
    tensor_parallel: Positive | Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Ranks that hold slices of every weight; a list tunes for each."""

    @property
    def parallels(self) -> tuple[Parallel, ...]:
        degrees = self.tensor_parallel if isinstance(self.tensor_parallel, tuple) else (self.tensor_parallel,)
        return tuple(Parallel(tensor=degree) for degree in degrees)


class Shape(BaseModel):
    """An explicit shape: every further key is a dim of the operator, in elements, or what that says."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, NotNegative] = Field(init=False)

    operator: str
    dtype: str = "bf16"
    world: Positive = 1
    """Ranks that work on it together."""
    tokens: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    """Absent: those of the campaign."""
    routing: str | None = None
    """How tokens are spread over experts, by name; absent: the campaign's ``routings``."""

    @property
    def dims(self) -> dict[str, int]:
        return dict(self.__pydantic_extra__)


class Budget(_Table):
    """When a campaign ends. At least one of ``trials``, ``minutes`` and ``seconds``."""

    trials: Positive | None = None
    """Configs measured a cell, enqueued ones included; baselines, finalists and reused measurements do not count."""
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """For all cells together, finalists included; minutes and seconds add up."""
    finalists: Annotated[StrictInt, Field(ge=0)] = 4
    """The best configs of a cell that are measured again, interleaved with the best of each variant, the incumbent and
    every baseline."""
    patience: Positive | None = None
    """A cell ends early after so many trials in a row without a config that is faster by 1 % or more."""

    @model_validator(mode="after")
    def _ends(self) -> Budget:
        if self.trials is None and self.total_seconds is None:
            raise ValueError("a campaign has to end: give trials (a cell), minutes or seconds (for all)")
        return self

    @property
    def total_seconds(self) -> float | None:
        if self.minutes is None and self.seconds is None:
            return None
        return 60 * (self.minutes or 0.0) + (self.seconds or 0.0)


class SamplerTable(_Table):
    """What proposes configs."""

    kind: Literal["model", "tpe", "gp", "random"] = "model"
    """``model``: a Gaussian process over the cell and its neighbours; ``tpe`` and ``gp``: Optuna's, each cell alone."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    studies: StrictBool | None = None
    """Whether to write Optuna's studies, for Optuna's tools, when the campaign ends; absent: unless it is a replay."""


class RegimeTable(_Table):
    """Under which conditions samples are taken; decode's are cold weights in a CUDA graph."""

    weights: Literal["cold", "warm"] = "cold"
    execution: Literal["graph", "eager"] = "graph"


class RunnerTable(_Table):
    """What measures configs."""

    kind: Literal["gpu", "group", "emulated", "replay"] = "gpu"
    """``gpu``: one GPU; ``group``: a GPU for each rank of the workloads' world; ``emulated``: all ranks on one GPU."""
    recording: str | None = None
    """Of ``replay``: a shipped recording's name, or the path of a recording file."""
    world: Positive | None = None
    """Of ``replay``: how many ranks were recorded together, where an operator of the model runs alone and in groups;
    absent: alone."""

    @model_validator(mode="after")
    def _replays(self) -> RunnerTable:
        if (self.kind == "replay") != (self.recording is not None):
            raise ValueError('kind = "replay" needs a recording, and no other kind takes one')
        if self.world is not None and self.kind != "replay":
            raise ValueError('only kind = "replay" takes a world: others measure that of model.tensor_parallel')
        return self

    @property
    def is_group(self) -> bool:
        """Whether several ranks are measured together."""
        return self.kind in ("group", "emulated")

    def unfit(self, operator: str, world: int) -> str:
        """Why this runner cannot measure an operator's workload of so many ranks; empty when it can."""
        if self.is_group and world == 1:
            return f'{operator} runs on one GPU here, world 1: kind = "{self.kind}" measures worlds of 2 and more'
        if self.kind == "gpu" and world > 1:
            return (
                f'{operator} takes {world} GPUs here: set runner.kind to "group", or to "emulated" for all ranks on one'
            )
        if self.kind == "emulated" and world not in EMULATED_WORLDS:
            low, high = EMULATED_WORLDS[0], EMULATED_WORLDS[-1]
            return f'{operator} has world {world} here: kind = "emulated" measures worlds of {low} to {high}'
        if self.world not in (None, world):
            return f"{operator} has world {world} here: runner.world says that a group of {self.world} was recorded"
        return ""


class CrossoversTable(_Table):
    """What is measured to find where one variant gives way to another."""

    refine: StrictBool = False
    """Whether cells between the listed tokens are measured too, by bisection, until it is known where one variant gives
    way to another. Each takes the winners of its neighbours and the finals, no search. Off unless it is asked for: it
    says nothing of the listed tokens and takes time, which a campaign of operators whose variants cross will want to
    spend."""


class RecordTable(_Table):
    """Which configs ``megatune record`` measures."""

    sample: Positive | None = None
    """Configs a cell beside each variant's default, the same ones in every cell that has them; absent: the whole
    space."""
    seed: Annotated[StrictInt, Field(ge=0)] = 0
    around_defaults: StrictBool = False
    """Whether a sample also has, for each value of each parameter, the config nearest to the variant's default that has
    that value."""
    around_crossovers: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a crossover's tokens: every whole number of tokens that near to one is recorded too, for replays that
    look for it. Of these cells it is the best configs of the listed tokens below and above that are measured. Absent:
    the listed tokens alone."""


class Campaign(_Table):
    """A declared tuning run. Made by ``load_campaign`` or ``parse_campaign``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    tokens: Annotated[tuple[Positive, ...], Field(min_length=1)]
    operators: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Which operators to derive from the model; absent: every registered one that the runner can measure, except for
    chains, which use the kernels of others, and adapters, which tune those of another runtime."""
    model: ModelTable | None = None
    shapes: tuple[Shape, ...] = ()
    routings: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """How tokens are spread over experts, by name, for the operators for which that makes a difference; absent: the
    operator's default. Each is a workload of its own."""
    objective: Objective | None = None
    """What its plans choose by over the routings of a shape: ``mean``, ``worst``, or the weight of each routing in a
    mean. What is a finalist at one of them is then measured at all. Absent: each routing has bands of its own."""
    variants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    space: dict[str, dict[str, Values]] = {}
    """By variant and parameter, the only values to search."""
    arch: str | None = None
    """What is compiled for; absent: the architecture of the runner's target."""
    budget: Budget = Budget(trials=32)
    sampler: SamplerTable = SamplerTable()
    regime: RegimeTable = RegimeTable()
    runner: RunnerTable = RunnerTable()
    crossovers: CrossoversTable = CrossoversTable()
    record: RecordTable = RecordTable()

    _source: str = PrivateAttr(default="campaign")
    _text: str = PrivateAttr(default="")
    _known_spaces: dict[Architecture, dict[Workload, Space]] = PrivateAttr(default_factory=dict)
    """By architecture: a space is asked for before a database is opened, and again by who measures."""

    @model_validator(mode="after")
    def _has_shapes(self) -> Campaign:
        if self.model is None and not self.shapes:
            raise ValueError("nothing to tune: give [model] or [[shapes]]")
        return self

    @model_validator(mode="after")
    def _compares(self) -> Campaign:
        for key, asked in (
            ("crossovers.refine", self.crossovers.refine),
            ("record.around_crossovers", self.record.around_crossovers is not None),
        ):
            if asked and not self.budget.finalists:
                raise ValueError(f"{key} compares finalists: budget.finalists has to be at least 1")
        return self

    @property
    def source(self) -> str:
        """Name of the file, for messages."""
        return self._source

    @property
    def text(self) -> str:
        """The file as it was read."""
        return self._text

    @property
    def writes_studies(self) -> bool:
        """Whether Optuna's studies are written when the campaign ends."""
        return self.runner.kind != "replay" if self.sampler.studies is None else self.sampler.studies

    def measuring_regime(self) -> Regime:
        return Regime(self.regime.weights, self.regime.execution)

    def fault(self, key: str, message: object) -> MegatuneError:
        """An error that names the file and the key."""
        return MegatuneError(f"{self.source}: {key}: {message}")

    def workloads(self) -> list[Workload]:
        """Every distinct workload, those of the model first, in a stable order.

        :raises MegatuneError: for an unknown operator or model, an impossible shape, or one that the runner cannot
            measure, naming file and key.
        """
        return list(self._workloads)

    @cached_property
    def _workloads(self) -> tuple[Workload, ...]:
        found: dict[Workload, None] = {}
        if self.model is not None:
            try:
                figures = model(self.model.name)
            except MegatuneError as error:
                raise self.fault("model.name", error) from error
            alone = sorted(name for name, each in operators().items() if not each.uses and not each.adapts)
            for name in self.operators or alone:
                chosen = self._operator(name, "operators")
                for parallel in self.model.parallels:
                    try:
                        derived = chosen.workloads(figures, parallel, self.tokens)
                    except MegatuneError as error:
                        raise self.fault(
                            f"model (operator {name}, tensor_parallel {parallel.tensor})", error
                        ) from error
                    found |= dict.fromkeys(self._fit(self._routed(chosen, derived, self.routings, "routings")))
        for index, shape in enumerate(self.shapes):
            chosen = self._operator(shape.operator, f"shapes[{index}].operator")
            if self.operators is not None and shape.operator not in self.operators:
                raise self.fault(f"shapes[{index}].operator", f"{shape.operator} is not among operators")
            for tokens in shape.tokens or self.tokens:
                try:
                    plain = chosen.workload(shape.dims, tokens, shape.dtype, shape.world)
                except MegatuneError as error:
                    raise self.fault(f"shapes[{index}] at tokens {tokens}", error) from error
                routings = self.routings if shape.routing is None else (shape.routing,)
                key = "routings" if shape.routing is None else f"shapes[{index}].routing"
                found |= dict.fromkeys(self._routed(chosen, [plain], routings, key))
            if unfit := self.runner.unfit(shape.operator, shape.world):
                raise self.fault(f"shapes[{index}].world", unfit)
        self._check_worlds(found)
        if self.objective is not None and (fault := objective_fault(self.objective, found)):
            raise self.fault("objective", fault)
        if self.routings is not None and not any(operator(workload.operator).routings for workload in found):
            raise self.fault("routings", "no operator here depends on how tokens are spread over experts")
        return tuple(found)

    def _routed(
        self, chosen: Operator, plain: Sequence[Workload], routings: Sequence[str] | None, key: str
    ) -> list[Workload]:
        """The workloads at each of the routings; as they are where those make no difference."""
        if routings is None or (key == "routings" and not chosen.routings):
            return list(plain)
        try:
            return [chosen.routed(workload, routing) for routing in routings for workload in plain]
        except MegatuneError as error:
            raise self.fault(key, error) from error

    def _fit(self, derived: Sequence[Workload]) -> list[Workload]:
        """Those of a model's workloads that the runner can measure.

        :raises MegatuneError: where the operators are named and it can measure none of one.
        """
        unfit = {workload: self.runner.unfit(workload.operator, workload.world) for workload in derived}
        fit = [workload for workload in derived if not unfit[workload]]
        if self.runner.kind == "replay" and (self.operators is None or len({each.world for each in fit}) > 1):
            # A recording is of one world: a replay of a group's names the operators, and which world where it must.
            fit = [workload for workload in fit if workload.world == (self.runner.world or 1)]
        if self.operators is not None and not fit:
            for why in filter(None, unfit.values()):
                raise self.fault("operators", why)
        return fit

    def _check_worlds(self, found: Mapping[Workload, None]) -> None:
        if not found:
            key = "runner.kind" if self.operators is None else "operators"
            ranks = [1] if self.model is None else [parallel.tensor for parallel in self.model.parallels]
            more = "; ranks that reduce are 2 or more: raise model.tensor_parallel" if max(ranks) == 1 else ""
            raise self.fault(key, f'the model has no workload that kind = "{self.runner.kind}" measures{more}')
        worlds = sorted({workload.world for workload in found})
        if self.runner.is_group and len(worlds) > 1:
            key = "model.tensor_parallel" if self.model is not None else "shapes"
            several = ", ".join(map(str, worlds))
            raise self.fault(key, f"a group has one world, and these are {several}: give each a campaign of its own")

    @property
    def world(self) -> int:
        """The most ranks that work on one workload together; of a group, that of every workload."""
        return max(workload.world for workload in self._workloads)

    def _operator(self, name: str, key: str) -> Operator:
        try:
            return operator(name)
        except MegatuneError as error:
            raise self.fault(key, f"{error}{_near(name, operators())}") from error

    def spaces(self, arch: Architecture) -> dict[Workload, Space]:
        """The space of every workload on that architecture, restricted to ``variants`` and ``space``.

        A variant that cannot run a workload, or of which no allowed value is legal there, is left out of that
        workload's space.

        :raises MegatuneError: for a variant, parameter or value that no workload knows, an ``arch`` that is not the
            given one, and a workload without any legal config.
        """
        if self.arch is not None and architecture(self.arch).name != arch.name:
            raise self.fault("arch", f"{self.arch} is asked for, but the runner's target is {arch.name}")
        if arch not in self._known_spaces:
            whole = {workload: operator(workload.operator).space(workload, arch) for workload in self.workloads()}
            self._check_restrictions(list(whole.values()))
            restricted = {workload: self._restricted(workload, space) for workload, space in whole.items()}
            self._known_spaces[arch] = restricted
        return dict(self._known_spaces[arch])

    def space_at(self, workload: Workload, arch: Architecture) -> Space:
        """The space of a workload beside the listed ones, restricted alike.

        :raises MegatuneError: when no config of it is legal.
        """
        return self._restricted(workload, operator(workload.operator).space(workload, arch))

    def _check_restrictions(self, spaces: Sequence[Space]) -> None:
        known: dict[str, dict[str, dict[Value, None]]] = {}
        for space in spaces:
            for name, variant in space.by_variant.items():
                axes = known.setdefault(name, {})
                for parameter in variant.parameters:
                    axes.setdefault(parameter.name, {}).update(dict.fromkeys(parameter.values))
        for name in self.variants or ():
            if name not in known:
                raise self.fault("variants", f"unknown variant {name!r}{_near(name, known)}; {_allowed(known)}")
        for name, axes_wanted in self.space.items():
            if name not in known:
                raise self.fault(f"space.{name}", f"unknown variant{_near(name, known)}; {_allowed(known)}")
            for axis, values in axes_wanted.items():
                if axis not in known[name]:
                    near = _near(axis, known[name])
                    raise self.fault(f"space.{name}.{axis}", f"unknown parameter{near}; {_allowed(known[name])}")
                for value in values:
                    # 1 == True in Python, but not in a space.
                    if not any(value == legal and type(value) is type(legal) for legal in known[name][axis]):
                        raise self.fault(
                            f"space.{name}.{axis}",
                            f"{_shown(value)} is no value; {_allowed(known[name][axis])}",
                        )

    def _restricted(self, workload: Workload, space: Space) -> Space:
        variants = []
        values: dict[str, dict[str, list[Value]]] = {}
        for name, variant in space.by_variant.items():
            wanted = self.space.get(name, {})
            here = {
                p.name: [v for v in wanted[p.name] if v in p.values] for p in variant.parameters if p.name in wanted
            }
            if (self.variants is None or name in self.variants) and all(here.values()):
                variants.append(name)
                values[name] = here
        restricted = space.restricted(variants, values) if variants else Space(())
        if not any(True for variant in restricted.variants for _ in variant.configs()):
            key = "space" if self.space else "variants" if self.variants else "shapes"
            raise self.fault(key, f"no legal config is left for {workload}; allow more variants or values")
        return restricted


def load_campaign(path: Path | str) -> Campaign:
    """Read a campaign file.

    :raises MegatuneError: one line that names the file, the key and what is allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MegatuneError(f"cannot read campaign file {path}: {why}") from error
    return parse_campaign(text, source=str(path))


def parse_campaign(text: str, source: str = "campaign") -> Campaign:
    """The campaign that a file's text declares.

    :raises MegatuneError: as ``load_campaign``.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MegatuneError(f"{source}: not TOML: {error}") from error
    try:
        campaign = Campaign.model_validate(table)
    except ValidationError as error:
        raise MegatuneError(f"{source}: {_first(error, table)}") from error
    campaign._source = source
    campaign._text = text
    if campaign.arch is not None:
        try:
            campaign.spaces(architecture(campaign.arch))
        except MegatuneError as error:
            raise error if str(error).startswith(source) else campaign.fault("arch", error) from error
    else:
        campaign.workloads()
    return campaign


_TABLES: dict[str, type[BaseModel]] = {
    "": Campaign,
    "model": ModelTable,
    "budget": Budget,
    "sampler": SamplerTable,
    "regime": RegimeTable,
    "runner": RunnerTable,
    "crossovers": CrossoversTable,
    "record": RecordTable,
}


_WANTED = {
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "too_short": "a list with at least one value",
    "int_type": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "literal_error": "one of {expected}",
}
"""What a value has to be, in words of the file format, by Pydantic's name for what it is not."""


def _first(error: ValidationError, table: dict[str, Any]) -> str:
    """The finding to mend first in one line: dotted key, what is wrong, what is allowed, the nearest miss.

    An unknown key comes first, because a misspelt one is also missing under its right name.
    """
    by_key: dict[str, list[ErrorDetails]] = {}
    for finding in error.errors(include_url=False):
        by_key.setdefault(_dotted(finding, table), []).append(finding)
    # Of a value that may be one thing, a list or a table, what is wrong inside says more than what it is.
    inside = [key for key in by_key if not any(other.startswith((f"{key}[", f"{key}.")) for other in by_key)]
    key = min(inside, key=lambda key: _URGENCY.get(by_key[key][0]["type"], 1))
    more = f" (and {len(inside) - 1} more)" if len(inside) > 1 else ""
    return f"{key}: {_wrong(key, by_key[key])}{more}" if key else f"{_wrong(key, by_key[key])}{more}"


_URGENCY = {"extra_forbidden": 0, "missing": 2}


def _wrong(key: str, findings: Sequence[ErrorDetails]) -> str:
    """What is wrong with the value of a key; several findings are what the value could have been."""
    first = findings[0]
    if first["type"] == "extra_forbidden":
        fields = list(_TABLES[".".join(map(str, first["loc"][:-1]))].model_fields)
        return f"unknown key{_near(str(first['loc'][-1]), fields)}; {_allowed(fields)}"
    if first["type"] == "missing":
        return "missing"
    if first["type"] == "string_pattern_mismatch":
        return f"has to be {NAMES}, not {first['input']!r}"
    if first["type"] not in _WANTED:
        return first["msg"].removeprefix("Value error, ")
    wanted = dict.fromkeys(_wanted(finding) for finding in findings if finding["type"] in _WANTED)
    what = f"has to be {' or '.join(wanted)}, not {_given(first['input'])}"
    if first["type"] == "literal_error":
        what += _near(str(first["input"]), _choices(first))
    elif first["type"] == "model_type" and isinstance(first["input"], list):
        what += f"; write [{key}]"
    elif first["loc"][0] == "shapes" and len(first["loc"]) == 3 and first["loc"][-1] not in Shape.model_fields:
        # Any key of a shape may be a dim, also one that was to be another.
        what += _near(str(first["loc"][-1]), Shape.model_fields)
    return what


def _wanted(finding: ErrorDetails) -> str:
    context = {**finding.get("ctx", {}), "expected": ", ".join(_choices(finding))}
    return _WANTED[finding["type"]].format(**context)


def _choices(finding: ErrorDetails) -> list[str]:
    """Of a value that has to be one of several."""
    return re.findall("'([^']*)'", finding.get("ctx", {}).get("expected", ""))


def _given(value: Any) -> str:
    """A value as the file has it; tables and lists, which may be long, by what they are."""
    if isinstance(value, list) and value:
        return "a list of tables" if all(isinstance(each, dict) for each in value) else "a list"
    return "a table" if isinstance(value, dict) else _shown(value)


def _dotted(finding: ErrorDetails, table: dict[str, Any]) -> str:
    """The key as TOML writes it. Parts of a location that the file does not have name a union's members: left out."""
    key = ""
    value: Any = table
    for part in finding["loc"]:
        if isinstance(part, int) and isinstance(value, list):
            key += f"[{part}]"
            value = value[part]
        elif isinstance(value, dict) and (part in value or finding["type"] == "missing"):
            key += f".{part}" if str(part).isidentifier() else f".{str(part)!r}"
            value = value.get(part)
    return key.lstrip(".")


def _shown(value: Any) -> str:
    """A value as TOML writes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _allowed(names: Any) -> str:
    return f"allowed: {', '.join(each if isinstance(each, str) else _shown(each) for each in names)}"


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, [str(each) for each in known], n=1)
    return f", did you mean {near[0]!r}?" if near else ""
