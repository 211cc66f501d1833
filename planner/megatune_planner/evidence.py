"""What the database knows of each shape, in the form that planning decides from.

One number of tokens of one shape is decided from measurements of a single provenance, because each runner has its own
clock: the first, in the order asked for, in which a baseline was measured. And one shape is decided from measurements
of a single revision of the kernels: the one measured last, because older figures are of kernels that are no more.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from megatune_db import models
from megatune_db import queries
from megatune_db.queries import Contender
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_planner.objective import ANY
from megatune_planner.objective import Mix
from megatune_planner.objective import Objective
from megatune_planner.ties import Candidate
from megatune_planner.ties import Samples
from megatune_planner.ties import best

Expresses = Callable[[Workload, Config], bool]
"""Whether an exporter can express a config at a workload."""

ShapeKey = tuple[str, str, str, int, str]
"""Operator, shape, dtype, world and routing."""

Family = tuple[str, str, str, int]
"""Operator, shape, dtype and world: a shape at all of its routings."""

_SearchRow = tuple[int, int, int, float, float, float, str]
"""Ids of measurement, workload and config; median, low and high in microseconds; revision of the kernels."""

_STREAM_ROWS = 20_000
_FEW_WORKLOADS = 200
"""So few are looked up one by one in the index, instead of reading all of it."""


@dataclass
class Measured:
    """What was measured at one number of tokens of a shape."""

    workload: Workload
    provenance: Provenance
    revision: str = ""
    """Of the kernels of ``candidates``."""
    outdated: bool = False
    """Whether configs were measured here, but of other revisions alone."""
    baselines: list[Candidate] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    """Every config that may be the best here, and those that may be elsewhere; each once."""
    expressible: dict[str, Candidate] = field(default_factory=dict)
    """The best config that each exporter can express, by its name."""
    searched_baselines: list[Candidate] = field(default_factory=list)
    """The baselines once more, as the search measured them."""
    facts: dict[str, float] | None = None
    """What the operator says of the workload beside its key."""
    alone: Mapping[str, Measured] = field(default_factory=dict)
    """Where it stands for several routings, what was measured at each."""
    gaps: tuple[str, ...] = ()
    """What is missing of it, where it stands for several routings."""


@dataclass
class ShapeEvidence:
    """What was measured of one shape, by tokens."""

    workload: Workload
    """The shape at some number of tokens."""
    revision: str
    """Of the kernels that were measured: digest of their source; empty where that is not known."""
    at: dict[int, Measured] = field(default_factory=dict)
    mix: Mix | None = None
    """Where it stands for several routings: what every figure is made of; the workload has one of them."""
    alone: tuple[ShapeEvidence, ...] = ()
    """Then, what is known of each."""
    joined: Samples = field(default_factory=dict)
    """Then, samples of the finalists that were made, by id of the measurement that they begin with."""

    @property
    def routing(self) -> str:
        return self.workload.routing if self.mix is None else ANY


def family(workload: Workload) -> Family:
    """Which shape it is of, whatever its routing."""
    return (workload.operator, workload.shape, workload.dtype, workload.world)


def shape_key(workload: Workload) -> ShapeKey:
    return (workload.operator, workload.shape, workload.dtype, workload.world, workload.routing)


def gather(
    session: Session,
    *,
    target: str,
    regime: Regime,
    provenances: Sequence[Provenance],
    baselines: Mapping[str, Sequence[str]],
    expresses: Mapping[str, Expresses],
    only: Sequence[str] = (),
    objective: Objective | None = None,
) -> list[ShapeEvidence]:
    """Everything that may decide a band, by operator and shape.

    :param target: digest.
    :param provenances: what counts, the most trusted first.
    :param baselines: names by operator; operators that are not among them are left out.
    :param expresses: by name of the exporter.
    :param only: digests of workloads, for these alone; empty: all.
    :param objective: what may decide by it is there too, for ``mixing.mixed``, and of one revision at all routings.
    """
    names = sorted({name for mine in baselines.values() for name in mine})
    found = queries.contenders(
        session, target=target, regime=regime, provenances=provenances, baselines=names, workloads=only
    )
    found = [row for row in found if row.operator in baselines]
    mixes = _mixes(found, objective)
    revisions = _revisions(found, provenances, baselines, mixes)
    shapes: dict[ShapeKey, ShapeEvidence] = {}
    for rows in _by_workload(found).values():
        workload = _workload(rows[0])
        key = shape_key(workload)
        revision = revisions.get(family(workload) if family(workload) in mixes else key, "")
        measured = _measured(workload, rows, provenances, frozenset(baselines[workload.operator]), revision)
        shapes.setdefault(key, ShapeEvidence(workload, revision)).at[workload.tokens] = measured
    _complete(session, shapes, mixes, target=target, regime=regime, baselines=baselines, expresses=expresses)
    return [shapes[key] for key in sorted(shapes)]


def unasked(measured: Iterable[Provenance], asked: Sequence[Provenance]) -> str:
    """Of which other provenances measurements are there, for the end of a message; empty where there are none."""
    others = sorted(set(measured) - set(asked))
    return f" (some are {' or '.join(others)}: ask for them with --provenance)" if others else ""


def paired_samples(session: Session, shapes: Sequence[ShapeEvidence]) -> Samples:
    """The samples of every finalist."""
    return queries.samples(
        session,
        [
            candidate.measurement_id
            for shape in shapes
            for measured in shape.at.values()
            for candidate in (*measured.baselines, *measured.candidates)
            if candidate.stage is Stage.FINAL
        ],
    )


def _by_workload(rows: Iterable[Contender]) -> dict[str, list[Contender]]:
    found: dict[str, list[Contender]] = {}
    for row in rows:
        found.setdefault(row.workload, []).append(row)
    return found


def _workload(row: Contender) -> Workload:
    return Workload.of(row.operator, row.dims, row.tokens, dtype=row.dtype, world=row.world, routing=row.routing)


def _mixes(rows: Iterable[Contender], objective: Objective | None) -> dict[Family, Mix]:
    """Of the shapes that an objective decides for several routings at once."""
    routings: dict[Family, set[str]] = {}
    for row in rows if objective is not None and objective.mixes else ():
        routings.setdefault(family(_workload(row)), set()).add(row.routing)
    found = {} if objective is None else {key: objective.mix(names) for key, names in routings.items()}
    return {key: mix for key, mix in found.items() if mix is not None}


def _revisions(
    rows: Iterable[Contender],
    provenances: Sequence[Provenance],
    baselines: Mapping[str, Sequence[str]],
    mixes: Mapping[Family, Mix],
) -> dict[ShapeKey | Family, str]:
    """Of each shape the revision that was measured last, of the most trusted provenance that it was measured with."""
    latest: dict[ShapeKey | Family, tuple[int, int, str]] = {}
    for row in rows:
        if row.variant not in baselines[row.operator]:
            workload = _workload(row)
            key = family(workload) if family(workload) in mixes else shape_key(workload)
            trust = (-provenances.index(row.provenance), row.measurement_id, row.revision)
            latest[key] = max(latest.get(key, trust), trust)
    return {key: revision for key, (_, _, revision) in latest.items()}


def _measured(
    workload: Workload,
    rows: list[Contender],
    provenances: Sequence[Provenance],
    baselines: frozenset[str],
    revision: str,
) -> Measured:
    present = rows
    rows = [row for row in present if row.variant in baselines or row.revision == revision]
    if not rows:
        return Measured(workload, present[0].provenance, revision, outdated=True, facts=present[0].facts)
    with_baseline = {row.provenance for row in rows if row.variant in baselines}
    provenance = next(p for p in provenances if p in (with_baseline or {row.provenance for row in rows}))
    mine = [row for row in rows if row.provenance is provenance]
    measured = Measured(workload, provenance, revision, facts=present[0].facts)
    for row in _one_a_config(mine, baselines):
        (measured.baselines if row.variant in baselines else measured.candidates).append(_candidate(row))
    measured.searched_baselines += (
        _candidate(row) for row in mine if row.variant in baselines and row.stage is Stage.SEARCH
    )
    measured.outdated = not measured.candidates and len(rows) < len(present)
    return measured


def _one_a_config(rows: list[Contender], baselines: frozenset[str]) -> list[Contender]:
    """Of each config its row of the last session of finalists that a baseline took part in, else its last final one,
    else its search row. A later session saw the device, and the competition, as they are now."""
    sessions = [row.session for row in rows if row.stage is Stage.FINAL and row.variant in baselines]
    last = sessions[-1] if sessions else None

    def trust(row: Contender) -> tuple[bool, bool, int]:
        return (row.stage is Stage.FINAL and row.session == last, row.stage is Stage.FINAL, row.measurement_id)

    found: dict[tuple[str, str], Contender] = {}
    for row in rows:
        key = (row.variant, row.config)
        if key not in found or trust(row) > trust(found[key]):
            found[key] = row
    return list(found.values())


def _candidate(row: Contender) -> Candidate:
    return Candidate(
        row.measurement_id,
        row.variant,
        row.params,
        row.config,
        row.stage,
        row.session,
        row.median_us,
        row.low_us,
        row.high_us,
        row.provenance,
    )


def _complete(
    session: Session,
    shapes: Mapping[ShapeKey, ShapeEvidence],
    mixes: Mapping[Family, Mix],
    *,
    target: str,
    regime: Regime,
    baselines: Mapping[str, Sequence[str]],
    expresses: Mapping[str, Expresses],
) -> None:
    """Add what is beaten where it was measured and matters all the same.

    A config that may be the best at some tokens of a shape can serve its other tokens too, and what an exporter can
    express is seldom what is fastest. One pass over the rows of the search finds both. What is the best over several
    routings may be so at none of them: where that is asked for, a pass before finds it.
    """
    configs = _configs(session, baselines)
    workloads = _workloads(session, shapes, baselines)

    def key_of(workload: Workload) -> ShapeKey | Family:
        return family(workload) if family(workload) in mixes else shape_key(workload)

    somewhere: dict[ShapeKey | Family, set[str]] = {}
    for shape in shapes.values():
        mine = {candidate.config for measured in shape.at.values() for candidate in measured.candidates}
        somewhere.setdefault(key_of(shape.workload), set()).update(mine)
    for key, leading in _leading(session, target, regime, workloads, mixes, configs, expresses).items():
        somewhere[key] |= leading
    missing = {
        id_: somewhere[key_of(measured.workload)] - {candidate.config for candidate in measured.candidates}
        for id_, measured in workloads.items()
    }
    fastest: dict[str, dict[int, _SearchRow]] = {name: {} for name in expresses}
    for row in _search_rows(session, target, regime, workloads):
        _, workload_id, config_id, median, _, _, _ = row
        config = configs.get(config_id)
        if config is None:
            continue
        measured = workloads[workload_id]
        if config.digest in missing[workload_id]:
            measured.candidates.append(_searched(row, config, measured.provenance))
        for name, fits in expresses.items():
            so_far = fastest[name].get(workload_id)
            if (so_far is None or median < so_far[3]) and fits(measured.workload, config):
                fastest[name][workload_id] = row
    for workload_id, measured in workloads.items():
        for name, fits in expresses.items():
            able = [c for c in measured.candidates if fits(measured.workload, Config.of(c.variant, c.params))]
            found = fastest[name].get(workload_id)
            # A finalist's row stands for its config, so the row of the search may not come in a second time.
            if found is not None and configs[found[2]].digest not in {c.config for c in able}:
                able.append(_searched(found, configs[found[2]], measured.provenance))
            if able:
                measured.expressible[name] = best(able)


def _leading(
    session: Session,
    target: str,
    regime: Regime,
    workloads: Mapping[int, Measured],
    mixes: Mapping[Family, Mix],
    configs: Mapping[int, Config],
    expresses: Mapping[str, Expresses],
) -> dict[Family, set[str]]:
    """Digests of the configs that may be the best over the routings of a mix at some tokens, and of the best that each
    exporter can express."""
    mine = {
        id_: measured
        for id_, measured in workloads.items()
        if (mix := mixes.get(family(measured.workload))) and measured.workload.routing in mix.shares
    }
    if not mine:
        return {}
    rows: dict[Workload, dict[int, dict[str, _SearchRow]]] = {}
    for row in _search_rows(session, target, regime, mine):
        workload = mine[row[1]].workload
        if row[2] in configs:
            here = rows.setdefault(replace(workload, routing=ANY), {})
            here.setdefault(row[2], {})[workload.routing] = row
    found: dict[Family, set[str]] = {}
    for workload, by_config in rows.items():
        mix = mixes[family(workload)]
        whole = {id_: by for id_, by in by_config.items() if by.keys() == mix.shares.keys()}
        leading = found.setdefault(family(workload), set())
        times = {id_: mix.of({name: median for name, (_, _, _, median, *_) in by.items()}) for id_, by in whole.items()}
        if times:
            fastest = whole[min(times, key=times.__getitem__)]
            end = mix.of({name: high for name, (*_, high, _) in fastest.items()})
            lows = {id_: mix.of({name: row[4] for name, row in by.items()}) for id_, by in whole.items()}
            leading |= {configs[id_].digest for id_, low in lows.items() if low <= end}
        for fits in expresses.values():
            able = [id_ for id_ in whole if fits(workload, configs[id_])]
            leading |= {configs[min(able, key=times.__getitem__)].digest} if able else set()
    return found


def _search_rows(
    session: Session, target: str, regime: Regime, workloads: Mapping[int, Measured]
) -> Iterator[_SearchRow]:
    """Every ok row of the search of these workloads that no final refuted, each of its workload's provenance and
    revision.

    The columns are those of one index, so that a million rows cost seconds and their samples are never touched.
    """
    table = models.Measurement
    for provenance in sorted({measured.provenance for measured in workloads.values()}):
        mine = {id_: measured.revision for id_, measured in workloads.items() if measured.provenance is provenance}
        wrong = queries.refuted(session, target=target, regime=regime, provenances=[provenance])
        query = select(
            table.id,
            table.workload_id,
            table.config_id,
            table.median_us,
            table.low_us,
            table.high_us,
            table.revision,
        ).where(
            table.target_id == select(models.Target.id).where(models.Target.digest == target).scalar_subquery(),
            table.regime == str(regime),
            table.provenance == provenance,
            table.status == Status.OK,
            table.stage == Stage.SEARCH,
        )
        if len(mine) <= _FEW_WORKLOADS:
            query = query.where(table.workload_id.in_(mine))
        # Plain rows of the connection: the session's own cost twice as much, and nothing of it is needed.
        rows: Iterable[Any] = session.connection().execute(query).yield_per(_STREAM_ROWS)
        yield from (row for row in rows if mine.get(row[1]) == row[6] and (row[1], row[2], row[6]) not in wrong)


def _searched(row: _SearchRow, config: Config, provenance: Provenance) -> Candidate:
    id_, _, _, median, low, high, _ = row
    return Candidate(id_, config.variant, config.params, config.digest, Stage.SEARCH, "", median, low, high, provenance)


def _configs(session: Session, baselines: Mapping[str, Sequence[str]]) -> dict[int, Config]:
    """Configs of the operators by id, without their baselines."""
    table = models.Config
    query = select(table.id, table.operator, table.variant, table.params).where(table.operator.in_(sorted(baselines)))
    return {
        id_: Config.of(variant, params)
        for id_, operator, variant, params in session.execute(query)
        if variant not in baselines[operator]
    }


def _workloads(
    session: Session, shapes: Mapping[ShapeKey, ShapeEvidence], baselines: Mapping[str, Sequence[str]]
) -> dict[int, Measured]:
    measured = {m.workload.digest: m for shape in shapes.values() for m in shape.at.values()}
    table = models.Workload
    query = select(table.id, table.digest).where(table.operator.in_(sorted(baselines)))
    return {id_: measured[digest] for id_, digest in session.execute(query) if digest in measured}
