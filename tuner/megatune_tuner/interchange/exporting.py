"""Writing what was measured for Kernel Tuner: a file for each workload and variant."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sqlalchemy.orm import Session

from megatune_db.queries import ExportRow
from megatune_db.queries import export_rows
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.target import Target
from megatune_tuner.interchange.kernel_tuner import Entry
from megatune_tuner.interchange.kernel_tuner import Tuning
from megatune_tuner.interchange.kernel_tuner import write_cache
from megatune_tuner.interchange.kernel_tuner import write_t4
from megatune_tuner.interchange.kernel_tuner import write_t4_metadata

T4 = "t4"
CACHE = "kernel-tuner-cache"
METADATA = "metadata.json"
"""Beside results in the T4 schema: what they were measured on."""
UNROUTED = "none"
WRITERS: dict[str, Callable[[Tuning], str]] = {T4: write_t4, CACHE: write_cache}


def export_results(
    session: Session,
    folder: Path,
    kind: str,
    *,
    target: Target,
    regime: Regime,
    provenance: Provenance = Provenance.MEASURED,
    operator: str | None = None,
) -> list[Path]:
    """Write the measurements of a target that searched; return the files.

    Baselines, which have no parameters, and finals are left out.

    :param kind: ``T4`` or ``CACHE``.
    :raises NothingMeasured: when there are none.
    :raises MegatuneError: when a file cannot be written.
    """
    written = []
    for tuning, name in _tunings(session, target, regime, provenance, operator):
        path = folder / f"{name}.{'t4' if kind == T4 else 'cache'}.json"
        _write(path, WRITERS[kind](tuning))
        written.append(path)
    if not written:
        raise NothingMeasured(f"nothing to export: no config was measured on {target} in regime {regime}")
    if kind == T4:
        stored = target.to_dict()
        written.append(folder / METADATA)
        _write(written[-1], write_t4_metadata(stored["hardware"], stored["toolchain"]))
    return written


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MegatuneError(f"cannot write {path}: {error.strerror or error}; name another folder") from error


def _tunings(
    session: Session, target: Target, regime: Regime, provenance: Provenance, operator: str | None
) -> Iterator[tuple[Tuning, str]]:
    """What was measured of each workload and variant, and the name of its file."""
    rows = export_rows(session, target=target.digest, regime=regime, provenance=provenance, operator=operator)
    searched = (row for row in rows if row.measurement.stage is Stage.SEARCH and row.params)
    for (_, variant), group in groupby(searched, key=lambda row: (row.measurement.workload, row.variant)):
        found = list(group)
        first = found[0]
        about = {
            "operator": first.operator,
            "dims": first.dims,
            "tokens": first.tokens,
            "dtype": first.dtype,
            "world": first.world,
            "routing": first.routing,
            "variant": variant,
            "target": target.to_dict(),
            "regime": str(regime),
            "provenance": provenance.value,
        }
        entries = {str(sorted(row.params.items())): _entry(row) for row in found}
        size = (first.tokens, *(first.dims[name] for name in sorted(first.dims)))
        world = f"_world={first.world}" if first.world > 1 else ""
        routing = f"_routing={first.routing}" if first.routing != UNROUTED else ""
        name = f"{first.operator}_{first.shape}_tokens={first.tokens}{world}_{first.dtype}{routing}_{variant}"
        kernel = f"{first.operator}_{variant}"
        # Whatever a database was told, a file lies in the folder.
        yield Tuning(kernel, target.hardware.gpu, tuple(entries.values()), about, size), name.replace("/", "_")


def _entry(row: ExportRow) -> Entry:
    taken = row.measurement
    return Entry(
        params=dict(sorted(row.params.items())),
        status=taken.status,
        reason=taken.reason,
        samples_us=taken.samples_us,
        compile_s=taken.compile_s,
        measure_s=taken.measure_s,
        measured_at=taken.measured_at,
    )
