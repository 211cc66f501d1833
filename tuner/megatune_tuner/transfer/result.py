"""The file that measurements come back in: one line for each, written as soon as it is taken.

The first line says what was measured on. Each line begins with the SHA-256 of the line before and of its own content,
so that a changed, left-out or moved line is seen. What a killed process left half written at the end is dropped.

What this module imports, a GPU host has to have: the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Self

from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_tuner.transfer.bundle import workload_of

FORMAT = "megatune-result"
SCHEMA_VERSION = 1
DIGEST_LENGTH = 64
END = "end"


@dataclass(frozen=True)
class Header:
    """What a result holds for."""

    bundle: str
    """Digest of the bundle."""
    campaign: str
    text: str
    """The campaign file's."""
    budget: Mapping[str, Any]
    version: str
    """Of the Megatune that measured."""
    target: Target
    provenance: Provenance
    facts: Mapping[str, float]
    """Figures of the target that were measured beside."""
    artifacts: tuple[Mapping[str, Any], ...]
    """Of each compiled kernel its key, arch, entry, registers, local_bytes and cubin_bytes."""
    requests: int
    """Configs that the bundle asked for."""


@dataclass(frozen=True)
class Taken:
    """One measurement, with what it is of."""

    workload: Workload
    config: Config
    number: int
    """Of its trial; of a finalist, that of the last trial that the finals decide about."""
    reason: str
    """Who proposed it."""
    measurement: Measurement


@dataclass(frozen=True)
class Result:
    """What a result file holds."""

    path: Path
    header: Header
    lines: tuple[tuple[Taken, ...], ...]
    """Those of one line were taken together: one config, or the finalists of a cell."""
    complete: bool
    """Whether the bundle was measured to its end."""

    @property
    def taken(self) -> Iterator[Taken]:
        return (one for line in self.lines for one in line)


@dataclass
class Journal:
    """A result that is being written. Made by ``open_journal``."""

    path: Path
    result: Result
    _file: Any
    _last: str
    _searched: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    _finals: set[str] = field(default_factory=set)

    def searched(self, workload: Workload, config: Config) -> Measurement | None:
        """What was measured to search before; None when nothing was."""
        return self._searched.get((workload.digest, config.digest))

    def has_finals(self, workload: Workload) -> bool:
        return workload.digest in self._finals

    def add(self, taken: Sequence[Taken]) -> None:
        """Keep measurements that were taken together; they are on the disk when this returns.

        :raises MegatuneError: when the disk is full.
        """
        self._write({"taken": [_taken(one) for one in taken]})
        self._note(taken)

    def finish(self) -> None:
        """The bundle was measured to its end."""
        if not self.result.complete:
            self._write({END: True})

    def close(self) -> None:
        # What could not be written once cannot be written now.
        with contextlib.suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            if one.measurement.stage is Stage.FINAL:
                self._finals.add(one.workload.digest)
            else:
                self._searched[one.workload.digest, one.config.digest] = one.measurement

    def _write(self, value: Mapping[str, Any]) -> None:
        line, last = _line(self._last, value)
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise MegatuneError(f"cannot write the result {self.path}: {why}; make room, and measure on") from error
        self._last = last


def open_journal(path: Path, header: Header) -> Journal:
    """Begin a result, or go on with the one that is there.

    :raises MegatuneError: when the file cannot be written, is another bundle's, was measured on another target, or
        another process writes it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise MegatuneError(f"cannot write the result {path}: {error.strerror or error}; name another place") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise MegatuneError(f"another process measures into {path}: wait for it, or name another file") from error
    try:
        file.seek(0)
        lines, last, whole = _verified(path, file.read())
        if not lines:
            _check_begun(path, file)
            file.truncate(0)
            result = Result(path, header, (), complete=False)
            journal = Journal(path, result, file, "")
            journal._write({"format": FORMAT, "schema": SCHEMA_VERSION, "header": _header(header)})
            return journal
        file.truncate(whole)
        result = _result(path, lines)
        _goes_on(path, result.header, header)
        journal = Journal(path, result, file, last)
        for taken in result.lines:
            journal._note(taken)
    except BaseException:
        file.close()
        raise
    return journal


def _check_begun(path: Path, file: Any) -> None:
    """:raises MegatuneError: when what is there is no first line that was not written to its end: it is somebody's."""
    file.seek(0)
    begun = file.read(DIGEST_LENGTH + 2)
    if begun and not re.fullmatch(rb"[0-9a-f]{64} \{", begun):
        raise MegatuneError(f"{path} is there and is no result: name another file")


def _goes_on(path: Path, found: Header, mine: Header) -> None:
    if found.bundle != mine.bundle:
        raise MegatuneError(f"{path} is the result of another bundle, of {found.campaign}: name another file")
    if (found.target, found.provenance) != (mine.target, mine.provenance):
        raise MegatuneError(f"{path} was begun on {found.target}, and this is {mine.target}: name another file")


def read_result(path: Path) -> Result:
    """What a result file holds; one that was not measured to its end, too.

    :raises MegatuneError: when it cannot be read, is no result, is of another version, or was changed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MegatuneError(f"cannot read the result {path}: {error.strerror or error}") from error
    lines, _, _ = _verified(path, content)
    if not lines:
        raise MegatuneError(f"{path} is no result: measure a bundle into it")
    return _result(path, lines)


def _line(before: str, value: Mapping[str, Any]) -> tuple[bytes, str]:
    """The next line of a file, and its digest, given that of the line before."""
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(f"{before}{body}".encode()).hexdigest()
    return f"{digest} {body}\n".encode(), digest


def _verified(path: Path, content: bytes) -> tuple[list[dict[str, Any]], str, int]:
    """The lines, the digest of the last one, and how many bytes are whole lines."""
    lines: list[dict[str, Any]] = []
    last, whole = "", 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            # A process was killed while it wrote the line.
            break
        digest, _, body = line.rstrip(b"\n").partition(b" ")
        if hashlib.sha256(last.encode() + body).hexdigest().encode() != digest:
            if number == 1 and len(digest) != DIGEST_LENGTH:
                raise MegatuneError(f"{path} is no result: measure a bundle into another file")
            raise MegatuneError(f"{path} was changed or damaged on its way (line {number}): copy it again")
        try:
            lines.append(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise MegatuneError(f"{path} is no whole result (line {number} is not JSON): measure again") from error
        last, whole = digest.decode(), whole + len(line)
    return lines, last, whole


def _result(path: Path, lines: Sequence[Mapping[str, Any]]) -> Result:
    first, *rest = lines
    if not all(isinstance(line, dict) for line in lines):
        raise MegatuneError(f"{path} is no whole result (a line is no object): measure again")
    if (first.get("format"), first.get("schema")) != (FORMAT, SCHEMA_VERSION):
        raise MegatuneError(
            f"{path} is a {first.get('format')} of version {first.get('schema')}, this Megatune reads {FORMAT} of "
            f"version {SCHEMA_VERSION}"
        )
    try:
        header = _header_of(first["header"])
        taken = tuple(tuple(map(_taken_of, line["taken"])) for line in rest if "taken" in line)
        for one in (one for line in taken for one in line):
            _check(one.measurement, header)
        return Result(path, header, taken, complete=any(END in line for line in rest))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MegatuneError(f"{path} is no whole result ({error}): measure again") from error


def _check(taken: Measurement, header: Header) -> None:
    """:raises ValueError: for what nobody can have measured there, and what databases would keep as something else."""
    if (taken.target, taken.provenance) != (header.target.digest, header.provenance):
        raise ValueError("a measurement is of another target or provenance than the file")
    figures = [taken.median_us, taken.low_us, taken.high_us, *taken.samples_us, *(us for _, us in taken.parts_us)]
    if not all(math.isfinite(us) and us >= 0 for us in figures if us is not None):
        raise ValueError("a time is not a number of microseconds")


def _header(header: Header) -> dict[str, Any]:
    fields = {name: getattr(header, name) for name in ("bundle", "campaign", "text", "budget", "version", "requests")}
    return fields | {
        "target": header.target.to_dict(),
        "provenance": header.provenance.value,
        "facts": dict(header.facts),
        "artifacts": [dict(one) for one in header.artifacts],
    }


def _header_of(value: Mapping[str, Any]) -> Header:
    fields = dict(value)
    return Header(
        target=Target.from_dict(fields.pop("target")),
        provenance=Provenance(fields.pop("provenance")),
        artifacts=tuple(fields.pop("artifacts")),
        **fields,
    )


def _taken(one: Taken) -> dict[str, Any]:
    measurement = asdict(one.measurement)
    # These are named by what they are digests of.
    for name in ("workload", "config", "target"):
        del measurement[name]
    measurement["regime"] = str(one.measurement.regime)
    measurement["measured_at"] = one.measurement.measured_at.isoformat()
    return {
        "workload": one.workload.to_dict(),
        "variant": one.config.variant,
        "params": one.config.params,
        "number": one.number,
        "reason": one.reason,
        "target": one.measurement.target,
        "measurement": measurement,
    }


def _taken_of(value: Mapping[str, Any]) -> Taken:
    workload, config = workload_of(value["workload"]), Config.of(value["variant"], value["params"])
    fields = dict(value["measurement"])
    measurement = Measurement(
        workload=workload.digest,
        config=config.digest,
        target=value["target"],
        regime=Regime.parse(fields.pop("regime")),
        stage=Stage(fields.pop("stage")),
        status=Status(fields.pop("status")),
        provenance=Provenance(fields.pop("provenance")),
        measured_at=datetime.fromisoformat(fields.pop("measured_at")),
        samples_us=tuple(fields.pop("samples_us")),
        throttled=tuple(fields.pop("throttled")),
        parts_us=tuple((name, us) for name, us in fields.pop("parts_us")),
        **fields,
    )
    return Taken(workload, config, value["number"], value["reason"], measurement)
