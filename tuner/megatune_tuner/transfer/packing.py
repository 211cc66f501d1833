"""Making a bundle: what a campaign would measure next, compiled, with the part of Megatune that measures it.

A sampler learns nothing between two requests of a bundle. It proposes as many as the budget has trials, from what the
database knows; whoever wants it to learn makes a small bundle, takes its result in, and makes the next one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db.location import Location
from megatune_db.queries import TrialRow
from megatune_db.queries import campaign as campaign_row
from megatune_db.queries import trials
from megatune_db.records import JobState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_kernels.artifact import dsl_version
from megatune_kernels.artifact import revision_of
from megatune_kernels.artifact_store import store_location
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.space import Space
from megatune_kernels.target import Architecture
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture
from megatune_kernels.target import architecture_of
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.candidates import Catalogue
from megatune_tuner.cell import Cell
from megatune_tuner.cell_run import CellRun
from megatune_tuner.compiling import Built
from megatune_tuner.compiling import CompilePool
from megatune_tuner.finals import finalists
from megatune_tuner.ledger import Ledger
from megatune_tuner.measuring import Builder
from megatune_tuner.progress import Progress
from megatune_tuner.reasons import BASELINE
from megatune_tuner.reasons import KNOWN
from megatune_tuner.search import Search
from megatune_tuner.targets import find_target
from megatune_tuner.transactions import Transactions
from megatune_tuner.transfer.bundle import Bundle
from megatune_tuner.transfer.bundle import BundleFile
from megatune_tuner.transfer.bundle import Packed
from megatune_tuner.transfer.bundle import PackedCell
from megatune_tuner.transfer.bundle import write_bundle
from megatune_tuner.transfer.code import carried_code

NO_TARGET = "not measured yet"


@dataclass(frozen=True)
class _Asked:
    """A config that is to be packed."""

    number: int
    reason: str
    config: Config
    known: bool = False
    known_us: float | None = None


def pack_file(
    campaign: Campaign,
    out: Path,
    db: Location | None = None,
    *,
    target: str | None = None,
    configs: int | None = None,
    progress: Progress | None = None,
) -> BundleFile:
    """Write a bundle of what a campaign is still to measure.

    :param db: what it knows is not measured again; None: nothing is known.
    :param target: digest of the target that the bundle is to be measured on; needed where the database has several.
    :param configs: how many to ask for in each cell, in place of ``budget.trials``.
    :raises MegatuneError: for a campaign that is a replay, that has no number of trials or no architecture, and where
        nothing can be compiled.
    :raises NothingMeasured: when nothing is left to measure.
    """
    if campaign.runner.kind == "replay":
        raise campaign.fault("runner.kind", "a replay needs no GPU, and so no bundle: megatune run does it here")
    if configs is not None:
        budget = campaign.budget.model_copy(update={"trials": configs})
        campaign = campaign.model_copy(update={"budget": budget})
    if campaign.budget.trials is None:
        raise campaign.fault(
            "budget", "a bundle asks for a number of configs in each cell: give trials, or --configs on the command"
        )
    with _database(db) as database:
        chosen = _target(campaign, database, target)
        with closing(CompilePool(store_location(), architecture_of(chosen.hardware))) as pool:
            return pack(campaign, database, chosen, pool, out, progress=progress)


def pack(
    campaign: Campaign,
    database: Database,
    target: Target,
    builder: Builder,
    out: Path,
    *,
    progress: Progress | None = None,
) -> BundleFile:
    """Write a bundle for a target; as ``pack_file``."""
    seen = progress or Progress()
    emulated = campaign.runner.kind == "emulated"
    provenance = Provenance.EMULATED if emulated else Provenance.MEASURED
    arch = architecture_of(target.hardware)
    asked, last_numbers = _asked(campaign, _Known(database, campaign, target, provenance))
    if not asked:
        raise NothingMeasured(f"{campaign.source}: everything that it asks for was measured on {target}")
    builds = {
        (workload, one.config): _builds(builder, workload, one.config, arch)
        for workload, each in asked.items()
        for one in each
    }
    seen.note(f"compiling {len({id(build) for each in builds.values() for build in each})} kernels")
    artifacts: dict[str, Artifact] = {}
    cells = []
    for workload, each in asked.items():
        built = [
            _packed(workload, one, [build.result() for build in builds[workload, one.config]], artifacts, arch)
            for one in each
        ]
        cells.append(PackedCell(workload, tuple(built), last_numbers[workload]))
    names = sorted({workload.operator for workload in asked})
    bundle = Bundle(
        campaign=campaign.name,
        text=campaign.text,
        budget=campaign.budget.model_dump(exclude_none=True),
        version=version("megatune"),
        arch=target.hardware.arch,
        dsl=dsl_version(),
        regime=campaign.measuring_regime(),
        runner=campaign.runner.kind,
        world=campaign.world,
        finalists=campaign.budget.finalists,
        revisions={name: revision_of(operator(name)) for name in names},
        cells=tuple(cells),
    )
    return write_bundle(out, bundle, list(artifacts.values()), carried_code(names))


class _Known(Ledger):
    """What a database knows of a campaign. Nothing is written: a bundle that is never measured leaves no trace."""

    def __init__(self, database: Database, declared: Campaign, target: Target, provenance: Provenance) -> None:
        self._transactions = Transactions(database)
        self._begun = None
        self._declared = declared
        self._target = target
        self._provenance = provenance
        self._compiled = True
        self._regime = declared.measuring_regime()

    @property
    def target(self) -> Target:
        return self._target

    def trials(self, workload: Workload) -> list[TrialRow]:
        def read(session: Session) -> list[TrialRow]:
            row = campaign_row(session, self._declared.name)
            return trials(session, row.id, workload=workload.digest) if row is not None else []

        return self._transactions.read(read)

    def jobs(self, workload: Workload) -> dict[tuple[Stage, int], tuple[int, JobState]]:
        """None: who ingests what was measured puts nothing into a queue."""
        del workload
        return {}

    def reused(self, workload: Workload, space: Space, known: Iterable[tuple[Config, Measurement]]) -> None:
        """Ingesting says what the campaign counts on."""


def _asked(campaign: Campaign, ledger: _Known) -> tuple[dict[Workload, list[_Asked]], dict[Workload, int]]:
    """By workload what is to be measured, and what was measured and is to be among the finalists; and by workload the
    number of the last trial."""
    spaces = campaign.spaces(architecture_of(ledger.target.hardware))
    runs: dict[Workload, CellRun] = {}

    def open_cell(workload: Workload) -> Cell:
        try:
            catalogue = Catalogue(spaces[workload])
        except MegatuneError as error:
            raise campaign.fault(str(workload), error) from error
        runs[workload] = CellRun(campaign, workload, spaces[workload], catalogue, ledger)
        return runs[workload].cell

    search = Search(list(spaces), open_cell)
    asked: dict[Workload, list[_Asked]] = {workload: [] for workload in spaces}
    while (turn := search.turn()) is not None:
        cell, proposals = turn
        run = runs[cell.workload]
        asked[cell.workload] += [_Asked(run.number(), proposal.reason, proposal.config) for proposal in proposals]
    for workload, run in runs.items():
        new = asked[workload]
        new += [_Asked(run.number(), BASELINE, config) for config in run.take_baselines()]
        if not new and not run.needs_finals:
            del asked[workload]
            continue
        ranked = run.cell.ranked()
        best = finalists(ranked, campaign.budget.finalists, operator(workload.operator).curve_of)
        asked[workload] += [_Asked(0, KNOWN, config, known=True, known_us=run.cell.known[config]) for config in best]
        asked[workload] += [
            _Asked(0, BASELINE, config, known=True, known_us=us) for config, us in run.baselines.items()
        ]
    return asked, {workload: run.last_number for workload, run in runs.items()}


def _builds(builder: Builder, workload: Workload, config: Config, arch: Architecture) -> list[Future[Built]]:
    tuned = operator(workload.operator)
    parts = tuned.parts(workload, tuned.stands_for(workload, config, arch))
    return [builder.submit(operator(part.workload.operator), part.workload, part.config) for part in parts]


def _packed(
    workload: Workload, one: _Asked, built: Sequence[Built], artifacts: dict[str, Artifact], arch: Architecture
) -> Packed:
    for each in built:
        if each.artifact is not None:
            artifacts[each.artifact.key] = each.artifact
    runs = operator(workload.operator).stands_for(workload, one.config, arch)
    failed = next((each for each in built if each.status is not Status.OK), None)
    return Packed(
        number=one.number,
        reason=one.reason,
        config=one.config,
        artifacts=tuple(each.artifact.key for each in built if each.artifact is not None) if failed is None else (),
        compile_s=sum(each.compile_s for each in built),
        status=failed.status if failed is not None else Status.OK,
        failure=failed.reason if failed is not None else "",
        known=one.known,
        known_us=one.known_us,
        runs=runs if runs != one.config else None,
    )


@contextmanager
def _database(db: Location | None) -> Iterator[Database]:
    """The database, or an empty one that is gone afterwards."""
    if db is not None:
        with open_database(db, read_only=True) as database:
            yield database
        return
    with (
        tempfile.TemporaryDirectory(prefix="megatune-bundle-") as folder,
        open_database(Path(folder) / "empty.db") as empty,
    ):
        yield empty


def _target(campaign: Campaign, database: Database, wanted: str | None) -> Target:
    """The target that is named, or the only one of the campaign's architecture; else one that nothing was measured on.

    :raises MegatuneError: when there is no such target, or there are several.
    """

    def fits(found: Target) -> bool:
        return campaign.arch in (None, found.hardware.arch) and found.hardware.world == campaign.world

    with database.session() as session:
        found = find_target(session, wanted, (Provenance.MEASURED, Provenance.EMULATED), fits)
    if found is not None:
        if campaign.arch not in (None, found.hardware.arch):
            raise campaign.fault("arch", f"{campaign.arch} is asked for, but the target is {found.hardware.arch}")
        return found
    if campaign.arch is None:
        raise campaign.fault("arch", 'a bundle is compiled for one architecture: name it, e.g. arch = "sm_90a"')
    arch = architecture(campaign.arch)
    hardware = Hardware(NO_TARGET, arch.name, "", 0, arch.l2_bytes, 0, "none", campaign.world)
    return Target(hardware, Toolchain("", "", dsl_version(), ""))
