"""The commands ``import`` and ``export-results``: what other projects found, and what they can read of ours."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated

import typer

from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import locate
from megatune_planner.command_words import regime_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from megatune_tuner.interchange.importing import Imported
    from megatune_tuner.interchange.importing import Place

app = typer.Typer(help="Exchange with other projects.", add_completion=False)

DatabaseOption = Annotated[
    Location,
    typer.Option("--db", envvar=ENVIRONMENT, parser=locate, metavar="PATH|URL", help="The database."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DEFAULT_DATABASE = Location("megatune.db")


class ImportFormat(enum.StrEnum):
    """What ``import`` reads."""

    T4 = "t4"
    KERNEL_TUNER_CACHE = "kernel-tuner-cache"
    VLLM_MOE_TABLE = "vllm-moe-table"
    SGLANG_MOE_TABLE = "sglang-moe-table"
    FLASHINFER_CACHE = "flashinfer-cache"
    RECORDING = "recording"
    PUBLISHED = "published"


class ExportFormat(enum.StrEnum):
    """What ``export-results`` writes."""

    T4 = "t4"
    KERNEL_TUNER_CACHE = "kernel-tuner-cache"


@app.command("import", epilog="Example: megatune import moe/configs --format vllm-moe-table --db tuned.db")
def import_(
    kind: Annotated[ImportFormat, typer.Option("--format", help="What the files are.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Files; of tables and caches folders too. Published figures are those that are shipped without one.",
        ),
    ] = None,
    db: DatabaseOption = DEFAULT_DATABASE,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Of t4 and kernel-tuner-cache: the operator that was tuned.")
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", help="Its dims, e.g. k=7168,n=6288.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Its tokens.")] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Its variant, unless a parameter `variant` says it.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Its dtype.")] = "bf16",
    world: Annotated[int, typer.Option("--world", min=1, help="Its ranks.")] = 1,
    regime: Annotated[str, typer.Option("--regime", help="Under which conditions it was timed.")] = "warm-eager",
    as_json: JsonOption = False,
) -> None:
    """Take in what other projects found. Campaigns try it first; no plan counts on it until it was measured here."""
    from megatune_db.dialects import wait_for_imports
    from megatune_db.session import open_database
    from megatune_kernels.errors import MegatuneError
    from megatune_tuner.interchange.importing import Imported
    from megatune_tuner.interchange.importing import lines_of

    if not files and kind is not ImportFormat.PUBLISHED:
        raise MegatuneError(f"name the files to import as {kind}")
    place = _place(operator, shape, tokens, variant, dtype, world, regime)
    done = Imported()
    with open_database(db) as database, database.session() as session:
        wait_for_imports(session)
        chosen: list[Path | None] = [*files] if files else [None]
        for file in chosen:
            one = _import(session, kind, file, place)
            done.measurements += one.measurements
            done.priors += one.priors
            done.there += one.there
            done.reasons.update(one.reasons)
    if as_json:
        report = {
            "measurements": done.measurements,
            "priors": done.priors,
            "there": done.there,
            "reasons": dict(done.reasons),
        }
        typer.echo(json.dumps(report, indent=2))
        return
    for line in lines_of(done):
        typer.echo(line)


def _import(session: Session, kind: ImportFormat, file: Path | None, place: Place | None) -> Imported:
    from megatune_tuner.interchange import kernel_tuner
    from megatune_tuner.interchange import tables
    from megatune_tuner.interchange.importing import Imported
    from megatune_tuner.interchange.importing import import_priors
    from megatune_tuner.interchange.importing import import_tuning
    from megatune_tuner.interchange.importing import place_of

    if kind is ImportFormat.PUBLISHED:
        from megatune_planner.published.documents import read_entries
        from megatune_planner.published.importing import import_published

        return Imported(measurements=import_published(session, None if file is None else read_entries(file)))
    assert file is not None
    match kind:
        case ImportFormat.RECORDING:
            from megatune_tuner.recording_import import import_recording
            from megatune_tuner.recordings import recording

            return Imported(measurements=import_recording(session, recording(str(file))))
        case ImportFormat.VLLM_MOE_TABLE | ImportFormat.SGLANG_MOE_TABLE:
            found = tables.files_of(file, kind)
            return import_priors(session, (prior for each in found for prior in tables.moe_table(each, kind)))
        case ImportFormat.FLASHINFER_CACHE:
            found = tables.files_of(file, kind)
            return import_priors(session, (prior for each in found for prior in tables.flashinfer_cache(each)))
    read = kernel_tuner.read_t4 if kind is ImportFormat.T4 else kernel_tuner.read_cache
    tuning = read(_text(file), str(file))
    return import_tuning(session, tuning, kind.value, file.name, place or place_of(tuning.about))


def _text(file: Path) -> str:
    from megatune_kernels.errors import MegatuneError

    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MegatuneError(f"cannot read {file}: {why}") from error


def _place(
    operator: str | None,
    shape: str | None,
    tokens: int | None,
    variant: str | None,
    dtype: str,
    world: int,
    regime: str,
) -> Place | None:
    """What the user says that the files are of; None where he says nothing."""
    from megatune_kernels.errors import MegatuneError
    from megatune_kernels.operator import operator as operator_of
    from megatune_tuner.interchange.importing import Place

    if operator is None:
        return None
    if shape is None or tokens is None:
        raise MegatuneError("--operator needs --shape and --tokens beside it, e.g. --shape k=7168,n=6288 --tokens 4")
    try:
        dims = {name.strip(): int(size) for name, _, size in (part.partition("=") for part in shape.split(","))}
    except ValueError:
        raise MegatuneError(f"--shape {shape}: write dims as in k=7168,n=6288") from None
    return Place(operator_of(operator).workload(dims, tokens, dtype, world), variant, regime_of(regime))


@app.command("export-results", epilog="Example: megatune export-results --db tuned.db --format t4 --out results/")
def export_results(
    kind: Annotated[ExportFormat, typer.Option("--format", help="What to write.")],
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="The folder for the files.")],
    db: DatabaseOption = DEFAULT_DATABASE,
    target: Annotated[
        str | None, typer.Option("--target", help="Digest of the target; needed where the database has several.")
    ] = None,
    regime: Annotated[str, typer.Option("--regime", help="Conditions of the measurements.")] = "cold-graph",
    provenance: Annotated[str, typer.Option("--provenance", help="Of the measurements.")] = "measured",
    operator: Annotated[str | None, typer.Option("--operator", help="This operator alone.")] = None,
) -> None:
    """Write measurements as Kernel Tuner's results or caches, a file for each workload and variant."""
    from megatune_db.records import Provenance
    from megatune_db.session import open_database
    from megatune_kernels.errors import MegatuneError
    from megatune_kernels.errors import NothingMeasured
    from megatune_tuner.interchange.exporting import export_results as write
    from megatune_tuner.targets import find_target

    if provenance not in list(Provenance):
        raise MegatuneError(f"no such provenance: {provenance!r}; allowed: {', '.join(Provenance)}")
    chosen = Provenance(provenance)
    with open_database(db, create=False, read_only=True) as database, database.session() as session:
        found = find_target(session, target, [chosen])
        if found is None:
            raise NothingMeasured(f"{db} has nothing of provenance {chosen}")
        conditions = regime_of(regime)
        files = write(
            session,
            out,
            kind.value,
            target=found,
            regime=conditions,
            provenance=chosen,
            operator=operator,
        )
    typer.echo(f"{len(files)} files written to {out}")
