"""The file format of recordings.

A recording is a Parquet file with one row a measurement, all of one target and one regime, sorted by workload and
config. What repeats (workload, config, status) is encoded once and costs next to nothing; samples are float32 whose
bytes are split into streams before they are compressed. Figures follow from the samples and digests from what they
name, so neither is stored. The file's metadata says what the measurements hold for and how they were taken.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from megatune_db.queries import ExportRow
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_kernels.canonical import canonical_json
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.target import Target

SCHEMA_VERSION = 1
METADATA = b"megatune"

SCHEMA = pa.schema(
    [
        pa.field("workload", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("variant", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("params", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("stage", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("session", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("status", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("reason", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("measured_at", pa.timestamp("ms"), nullable=False),
        pa.field("launches_a_sample", pa.int32(), nullable=False),
        pa.field("sm_clock_mhz", pa.int32()),
        pa.field("flush_bytes", pa.int64(), nullable=False),
        pa.field("samples_us", pa.list_(pa.float32()), nullable=False),
        pa.field("throttled", pa.list_(pa.bool_()), nullable=False),
        pa.field("revision", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("parts", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)
ADDED = ("revision", "parts")
"""Columns that files of earlier releases lack: empty there, because nobody knows."""
WORDS = [column.name for column in SCHEMA if pa.types.is_dictionary(column.type)]


@dataclass(frozen=True)
class About:
    """What a recording's measurements hold for and how they were taken."""

    target: Target
    regime: Regime
    version: str
    """Of Megatune."""
    campaign: str
    """The campaign file's text."""
    sampling: str
    """Which configs were measured, in words."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Figures of the target that were measured beside, e.g. ``copy_bytes_a_us``."""
    workload_facts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By digest of a workload, what its operator said of it beside its key, where it did: of a routing that was
    recorded elsewhere nobody can say it again."""

    def to_json(self) -> str:
        more = {each: dict(facts) for each, facts in self.workload_facts.items()}
        return canonical_json(
            {
                "schema": SCHEMA_VERSION,
                "target": self.target.to_dict(),
                "regime": str(self.regime),
                "version": self.version,
                "campaign": self.campaign,
                "sampling": self.sampling,
                "facts": dict(self.facts),
                **({"workload_facts": more} if more else {}),
            }
        )


def write_recording(path: Path, rows: Iterable[ExportRow], about: About) -> int:
    """Write measurements of one target and regime to a file, in their order, and return how many there were.

    A file that is there is replaced once the new one is complete.

    :raises MegatuneError: when there are none, or the file cannot be written, with its path and what to do.
    """
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    facts = dict(about.workload_facts)
    for row in rows:
        measurement = row.measurement
        if row.facts:
            facts[measurement.workload] = row.facts
        workload = Workload.of(
            row.operator, row.dims, row.tokens, dtype=row.dtype, world=row.world, routing=row.routing
        )
        columns["workload"].append(canonical_json(workload.to_dict()))
        columns["variant"].append(row.variant)
        columns["params"].append(canonical_json(row.params))
        columns["stage"].append(measurement.stage.value)
        # Of the stage search a session says nothing, and it would be the largest column of all.
        columns["session"].append(measurement.session if measurement.stage is Stage.FINAL else "")
        columns["status"].append(measurement.status.value)
        columns["reason"].append(measurement.reason)
        columns["measured_at"].append(measurement.measured_at)
        columns["launches_a_sample"].append(measurement.launches_a_sample)
        columns["sm_clock_mhz"].append(measurement.sm_clock_mhz)
        columns["flush_bytes"].append(measurement.flush_bytes)
        columns["samples_us"].append(measurement.samples_us)
        columns["throttled"].append(measurement.throttled)
        columns["revision"].append(measurement.revision)
        columns["parts"].append(canonical_json(dict(measurement.parts_us)) if measurement.parts_us else "")
    if not columns["workload"]:
        raise MegatuneError(f"nothing to write to {path}: no measurements of that target and regime")
    arrays = []
    for column in SCHEMA:
        if pa.types.is_dictionary(column.type):
            arrays.append(pa.array(columns[column.name], pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(columns[column.name], column.type))
    return write_table(path, pa.Table.from_arrays(arrays, schema=SCHEMA), replace(about, workload_facts=facts))


def check_place(path: Path) -> None:
    """Check, without a trace, that a recording could be written to ``path``: its folder, or the one to make that in.

    :raises MegatuneError: with the path and what to do.
    """
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise _unwritable(path, NotADirectoryError(errno.ENOTDIR, f"{folder} is no directory"))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(path, PermissionError(errno.EACCES, f"{folder} cannot be written to"))


def write_table(path: Path, table: pa.Table, about: About) -> int:
    """Write rows of ``SCHEMA``; as ``write_recording``."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        pq.write_table(
            table.replace_schema_metadata({METADATA: about.to_json().encode()}),
            partial,
            compression="zstd",
            compression_level=19,
            use_dictionary=[*WORDS, "launches_a_sample", "flush_bytes", "sm_clock_mhz"],
            column_encoding={"samples_us.list.element": "BYTE_STREAM_SPLIT", "measured_at": "DELTA_BINARY_PACKED"},
            row_group_size=len(table),
            data_page_size=2**23,
            dictionary_pagesize_limit=2**23,
            write_statistics=False,
            write_page_checksum=True,
        )
        partial.replace(path)
    except OSError as error:
        # Arrow's own text names the partial file, which nobody asked for.
        why = os.strerror(error.errno) if error.errno is not None else "input/output error"
        raise _unwritable(path, OSError(error.errno, why)) from error
    finally:
        # Where nothing can be written, nothing can be removed either, and the first error says more.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return len(table)


def _unwritable(path: Path, error: OSError) -> MegatuneError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space, or name another place" if full else "name another place, or make this one writable"
    return MegatuneError(f"cannot write recording {path}: {error.strerror or error}; {remedy}")


def read_table(path: Path) -> tuple[About, pa.Table]:
    """What a file holds: rows of ``SCHEMA``, not checked any further.

    :raises MegatuneError: when it cannot be read, is not a recording, or is of another version.
    """
    try:
        with path.open("rb") as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
    except OSError as error:
        raise MegatuneError(f"cannot read recording {path}: {_why(error)}") from error
    except pa.ArrowException as error:
        raise MegatuneError(f"{path} is not a recording: not a whole Parquet file") from error
    about = _about(path, (table.schema.metadata or {}).get(METADATA))
    for name in set(ADDED) - set(table.schema.names):
        table = table.append_column(name, pa.array([""] * len(table)).dictionary_encode())
    missing = [name for name in SCHEMA.names if name not in table.schema.names]
    if missing:
        raise MegatuneError(f"{path} is not a whole recording: it lacks the columns {', '.join(missing)}; record again")
    try:
        return about, table.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, ValueError) as error:
        raise not_whole(path, error) from error


def not_whole(path: Path, error: Exception) -> MegatuneError:
    """That what the file holds is not what a recording holds."""
    return MegatuneError(f"{path} is not a whole recording ({' '.join(str(error).split())}); record again")


def _why(error: OSError) -> str:
    return error.strerror or str(error).splitlines()[0]


def _figures(fields: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in fields.items()}


def _about(path: Path, metadata: bytes | None) -> About:
    if metadata is None:
        raise MegatuneError(f"{path} is not a recording: Parquet, but not written by Megatune")
    try:
        fields = json.loads(metadata)
        version = fields["schema"]
        if version == SCHEMA_VERSION:
            return About(
                target=Target.from_dict(fields["target"]),
                regime=Regime.parse(fields["regime"]),
                version=str(fields["version"]),
                campaign=str(fields["campaign"]),
                sampling=str(fields["sampling"]),
                facts=_figures(fields["facts"]),
                workload_facts={str(each): _figures(its) for each, its in fields.get("workload_facts", {}).items()},
            )
    except (ValueError, TypeError, KeyError, AttributeError, MegatuneError) as error:
        raise MegatuneError(f"{path} is not a recording: its metadata cannot be read ({error})") from error
    raise MegatuneError(
        f"{path} is a recording of version {version}, this Megatune reads version {SCHEMA_VERSION}: "
        "record again, or use the Megatune that wrote it"
    )
