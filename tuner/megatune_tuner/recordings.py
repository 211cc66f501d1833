"""Recordings in memory: measurements of whole spaces, for replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_intervals
from megatune_tuner.recording_file import WORDS
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import not_whole
from megatune_tuner.recording_file import read_table
from megatune_tuner.recording_file import write_table

SUFFIX = ".parquet"


@dataclass(frozen=True)
class Recorded:
    """One recorded measurement; times in µs a launch."""

    status: Status
    reason: str
    measured_at: datetime
    """UTC, without a time zone."""
    samples_us: tuple[float, ...] = ()
    throttled: tuple[bool, ...] = ()
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    launches_a_sample: int = 0
    sm_clock_mhz: int | None = None
    flush_bytes: int = 0
    revision: str = ""
    """Digest of the source of the kernels; empty for baselines, and where it is not known."""
    parts_us: tuple[tuple[str, float], ...] = ()
    """As in ``records.Measurement``."""


class Recording:
    """A recording in memory. Made by ``read_recording``; rows become objects when they are asked for."""

    def __init__(self, name: str, about: About, table: pa.Table) -> None:
        self.name = name
        self.about = about
        self._table = table
        self._words = {
            word: (column.indices.to_numpy(), column.dictionary.to_pylist())
            for word, column in ((word, table.column(word).combine_chunks()) for word in WORDS)
        }
        samples = table.column("samples_us").combine_chunks()
        self._samples: NDArray[np.float32] = samples.values.to_numpy()
        self._offsets: NDArray[np.int32] = samples.offsets.to_numpy()
        self._figures = median_intervals(self._samples, self._offsets)
        variants, params = self._words["variant"], self._words["params"]
        decoded = [json.loads(text) for text in params[1]]
        pairs = dict.fromkeys(zip(variants[0].tolist(), params[0].tolist(), strict=True))
        configs = {pair: Config.of(variants[1][pair[0]], decoded[pair[1]]) for pair in pairs}
        self._configs = [configs[pair] for pair in zip(variants[0].tolist(), params[0].tolist(), strict=True)]
        self._places = {text: workload_of(text) for text in self._words["workload"][1]}
        self._rows = self._index()

    def __len__(self) -> int:
        return len(self._configs)

    @cached_property
    def workloads(self) -> list[Workload]:
        """Every recorded workload, in the order of the file."""
        return list(self._rows)

    @property
    def is_emulated(self) -> bool:
        """Whether all ranks shared one GPU, so that its times say nothing of a group."""
        return self.about.target.hardware.links == Provenance.EMULATED

    def configs(self, workload: Workload) -> list[Config]:
        """Every config of the workload that was measured to search, baselines included, whatever its status."""
        return list(self._rows[workload][""]) if workload in self._rows else []

    def times_us(self, workload: Workload) -> dict[Config, float]:
        """The median of every config of the workload that worked, baselines included."""
        found = self._rows.get(workload, {}).get("", {})
        medians = self._figures[list(found.values()), 0].tolist()
        return {config: us for config, us in zip(found, medians, strict=True) if us == us}

    def search(self, workload: Workload, config: Config) -> Recorded | None:
        """What was measured to search; None when it was not."""
        row = self._rows.get(workload, {}).get("", {}).get(config)
        return None if row is None else self._recorded(row)

    def missing(self, workload: Workload, config: Config, regime: Regime) -> Recorded:
        """What stands for a measurement that is not recorded: it is infeasible here."""
        if regime != self.about.regime:
            reason = f"not recorded: {self.name} holds the regime {self.about.regime}, not {regime}"
        elif workload not in self._rows:
            reason = f"not recorded: {self.name} has no {workload}"
        else:
            reason = f"not recorded: {self.name} has not {config} of {workload}"
        return Recorded(Status.INFEASIBLE, reason, self.latest)

    @cached_property
    def latest(self) -> datetime:
        """When the last measurement was taken."""
        latest: datetime = pc.max(self._table["measured_at"]).as_py()
        return latest

    def finals(self, workload: Workload) -> list[dict[Config, Recorded]]:
        """The interleaved measurements of each session of finalists, the earliest session first."""
        sessions = [rows for session, rows in self._rows.get(workload, {}).items() if session]
        found = [{config: self._recorded(row) for config, row in rows.items()} for rows in sessions]
        return sorted(found, key=lambda rows: min(row.measured_at for row in rows.values()))

    def table(self) -> pa.Table:
        """The rows as they are in the file."""
        return self._table

    def keys(self) -> Iterator[tuple[str, ...]]:
        """What makes each row one, in an order that sorts rows into that of a file."""
        names = ("workload", "stage", "session", "variant", "params")
        columns = [[self._words[name][1][code] for code in self._words[name][0].tolist()] for name in names]
        places = {text: (place.operator, place.shape, f"{place.tokens:09}") for text, place in self._places.items()}
        for workload, *rest in zip(*columns, strict=True):
            yield (*places[workload], workload, *rest)

    def check(self) -> None:
        """:raises ValueError: when a row's status and samples do not agree, or a status is unknown."""
        statuses = [Status(text) for text in self._words["status"][1]]
        ok = np.array([status is Status.OK for status in statuses])[self._words["status"][0]]
        counts = np.diff(self._offsets)
        if not ((counts > 0) == ok).all():
            raise ValueError("a row that is ok has no samples, or one that is not has some")
        if not (np.isfinite(self._samples).all() and (self._samples > 0).all()):
            raise ValueError("a sample is not a positive number of microseconds")

    def _index(self) -> dict[Workload, dict[str, dict[Config, int]]]:
        """Row numbers by workload, session (empty: measured to search) and config."""
        codes, texts = self._words["workload"]
        stages, stage_texts = self._words["stage"]
        sessions, session_texts = self._words["session"]
        places = [self._places[text] for text in texts]
        found: dict[Workload, dict[str, dict[Config, int]]] = {}
        columns = zip(codes.tolist(), stages.tolist(), sessions.tolist(), self._configs, strict=True)
        for row, (code, stage, session, config) in enumerate(columns):
            final = stage_texts[stage] == Stage.FINAL
            of_session = found.setdefault(places[code], {"": {}}).setdefault(
                session_texts[session] if final else "", {}
            )
            of_session[config] = row
        return found

    def _word(self, name: str, row: int) -> str:
        codes, texts = self._words[name]
        return str(texts[codes[row]])

    def _recorded(self, row: int) -> Recorded:
        status = Status(self._word("status", row))
        median, low, high = self._figures[row].tolist() if status is Status.OK else (None, None, None)
        return Recorded(
            status=status,
            reason=self._word("reason", row),
            measured_at=self._table["measured_at"][row].as_py(),
            samples_us=tuple(self._samples[self._offsets[row] : self._offsets[row + 1]].tolist()),
            throttled=tuple(self._table["throttled"][row].as_py()),
            median_us=median,
            low_us=low,
            high_us=high,
            launches_a_sample=self._table["launches_a_sample"][row].as_py(),
            sm_clock_mhz=self._table["sm_clock_mhz"][row].as_py(),
            flush_bytes=self._table["flush_bytes"][row].as_py(),
            revision=self._word("revision", row),
            parts_us=tuple(json.loads(self._word("parts", row) or "{}").items()),
        )


def workload_of(text: str) -> Workload:
    """The workload that canonical JSON of ``Workload.to_dict`` describes."""
    fields = json.loads(text)
    return Workload.of(fields.pop("operator"), fields.pop("dims"), fields.pop("tokens"), **fields)


def read_recording(path: Path) -> Recording:
    """The recording in a file.

    :raises MegatuneError: when it cannot be read, is not a recording, or is of another version.
    """
    about, table = read_table(path)
    try:
        recording = Recording(path.stem, about, table)
        recording.check()
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise not_whole(path, error) from error
    return recording


def merge(path: Path, recordings: Sequence[Recording]) -> int:
    """Write the measurements of several recordings of one target and regime to one file; return how many.

    Of a config that several hold, the measurement of the first stays; sessions of finalists all stay.

    :raises MegatuneError: when targets or regimes differ, or the file cannot be written.
    """
    first = recordings[0]
    for other in recordings[1:]:
        for what, one, two in (
            ("target", first.about.target, other.about.target),
            ("regime", first.about.regime, other.about.regime),
        ):
            if one != two:
                raise MegatuneError(
                    f"cannot merge {first.name} and {other.name}: their {what}s differ ({one} and {two}), "
                    "and measurements of different ones are never compared"
                )
    kept: dict[tuple[str, ...], tuple[int, int]] = {}
    for number, recording in enumerate(recordings):
        for row, key in enumerate(recording.keys()):
            kept.setdefault(key, (number, row))
    starts = np.cumsum([0, *(len(recording) for recording in recordings)])
    order = [int(starts[number]) + row for _, (number, row) in sorted(kept.items())]
    table = pa.concat_tables([recording.table() for recording in recordings]).unify_dictionaries().take(order)
    about = first.about
    if len(recordings) > 1:
        statements = dict.fromkeys(recording.about.sampling for recording in recordings)
        texts = dict.fromkeys(recording.about.campaign for recording in recordings)
        # Where two say something of one workload, the first stays, as with measurements.
        facts = {
            each: its for recording in reversed(recordings) for each, its in recording.about.workload_facts.items()
        }
        about = replace(about, sampling="; ".join(statements), campaign="\n".join(texts), workload_facts=facts)
    return write_table(path, table.combine_chunks(), about)


def shipped_recordings() -> dict[str, Path]:
    """The recordings that come with Megatune, by name."""
    folder = files("megatune_tuner").joinpath("data", "recordings")
    if not folder.is_dir():
        return {}
    found = [Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)]
    return {path.stem: path for path in sorted(found)}


def recording(name_or_path: str) -> Recording:
    """A shipped recording by its name, or the recording in a file.

    :raises MegatuneError: when there is none, with the names of those that are shipped, or it cannot be read.
    """
    shipped = shipped_recordings()
    if name_or_path in shipped:
        return read_recording(shipped[name_or_path])
    path = Path(name_or_path)
    if not path.exists():
        names = ", ".join(shipped) or "none"
        raise MegatuneError(f"there is no recording {name_or_path!r}; give a file, or one that is shipped: {names}")
    return read_recording(path)
