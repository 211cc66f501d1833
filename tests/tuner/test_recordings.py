"""Recordings: what is written is what is read, and what is said of broken files."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from toy import TARGET
from toy_recordings import ABOUT
from toy_recordings import BASELINE
from toy_recordings import measurement
from toy_recordings import record_toy
from toy_recordings import row
from toy_recordings import rows
from toy_recordings import workloads

from megatune_db.queries import ExportRow
from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.space import Config
from megatune_tuner import recordings
from megatune_tuner.recording_file import METADATA
from megatune_tuner.recording_file import check_place
from megatune_tuner.recording_file import write_recording
from megatune_tuner.recordings import merge
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import recording
from megatune_tuner.recordings import shipped_recordings

CELL = workloads()[0]
A = Config.of("simt", {"block": 64, "rows": 2, "unroll": 2, "static": True})
B = Config.of("mma", {"tile": 64, "split": 1, "stages": 3, "swizzle": "full"})

samples = st.lists(st.floats(min_value=0.5, max_value=1e5, width=32), min_size=1, max_size=12)
configs = st.sampled_from([A, B, BASELINE])
statuses = st.sampled_from(Status)


@st.composite
def export_rows(draw: st.DrawFn) -> list[ExportRow]:
    found = []
    for workload in draw(st.lists(st.sampled_from(workloads()), min_size=1, max_size=3, unique=True)):
        for config in draw(st.lists(configs, min_size=1, unique=True)):
            made = measurement(workload, config, draw(statuses))
            if made.status is Status.OK:
                drawn = tuple(draw(samples))
                throttled = tuple(draw(st.booleans()) for _ in drawn) if draw(st.booleans()) else ()
                clock = draw(st.none() | st.integers(100, 3000))
                made = replace(made, samples_us=drawn, throttled=throttled, sm_clock_mhz=clock)
            found.append(row(workload, config, made))
    return found


@given(export_rows())
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[ExportRow]) -> None:
    path = tmp_path_factory.mktemp("recordings") / "some.parquet"
    assert write_recording(path, written, ABOUT) == len(written)
    found = read_recording(path)
    assert found.about == ABOUT
    assert len(found) == len(written)
    by_digest = {workload.digest: workload for workload in found.workloads}
    assert set(by_digest) == {one.measurement.workload for one in written}
    for one in written:
        was = one.measurement
        read = found.search(by_digest[was.workload], Config.of(one.variant, one.params))
        assert read is not None
        assert (read.status, read.reason) == (was.status, was.reason)
        assert (read.samples_us, read.throttled) == (was.samples_us, was.throttled)
        assert (read.sm_clock_mhz, read.launches_a_sample) == (was.sm_clock_mhz, was.launches_a_sample)
        assert read.flush_bytes == was.flush_bytes
        assert read.measured_at == was.measured_at
        assert read.median_us == (np.median(was.samples_us) if was.samples_us else None)


def test_the_revision_of_the_kernels_is_kept_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_recording(path, [row(CELL, A, replace(measurement(CELL, A), revision="r1"))], ABOUT)
    found = read_recording(path).search(CELL, A)
    assert found is not None
    assert found.revision == "r1"
    pq.write_table(pq.read_table(path).drop_columns(["revision"]), path)
    found = read_recording(path).search(CELL, A)
    assert found is not None
    assert found.revision == ""


def test_finals_are_kept_by_session(tmp_path: Path) -> None:
    written = [row(CELL, config, measurement(CELL, config)) for config in (A, B)]
    for number, session in enumerate(("later", "sooner")):
        for config in (A, BASELINE):
            written.append(row(CELL, config, measurement(CELL, config, session=session, number=10 - number)))
    path = tmp_path / "some.parquet"
    write_recording(path, written, ABOUT)
    found = read_recording(path)
    assert found.configs(CELL) == [A, B]
    sooner, later = found.finals(CELL)
    assert set(sooner) == set(later) == {A, BASELINE}
    assert sooner[A].measured_at < later[A].measured_at


def test_times_are_those_of_what_works(tmp_path: Path) -> None:
    path = record_toy(tmp_path / "toy.parquet", [CELL], lambda config: Status.CRASH if config == A else Status.OK)
    found = read_recording(path)
    times = found.times_us(CELL)
    assert A not in times
    assert len(times) == len(found.configs(CELL)) - 1
    assert found.times_us(CELL.at(3)) == {}


def test_a_hundred_thousand_measurements_would_fit_the_package(tmp_path: Path) -> None:
    path = record_toy(tmp_path / "toy.parquet")
    found = read_recording(path)
    assert len(found) > 3000
    # Eight MB for 100000: the fixed part of a file is amortised there, here it is not.
    assert path.stat().st_size / len(found) < 80


def test_merging_keeps_the_first_and_every_final(tmp_path: Path) -> None:
    slow = replace(measurement(CELL, A), samples_us=(99.0,), median_us=99.0, low_us=99.0, high_us=99.0)
    one, two, both = tmp_path / "one.parquet", tmp_path / "two.parquet", tmp_path / "both.parquet"
    write_recording(one, [row(CELL, A, measurement(CELL, A)), row(CELL, A, measurement(CELL, A, session="s"))], ABOUT)
    second = [row(CELL, A, slow), row(CELL, B, measurement(CELL, B)), row(CELL, A, measurement(CELL, A, session="t"))]
    write_recording(two, second, replace(ABOUT, sampling="a few"))
    assert merge(both, [read_recording(one), read_recording(two)]) == 4
    found = read_recording(both)
    assert found.about.sampling == "the whole space; a few"
    assert found.search(CELL, A) == read_recording(one).search(CELL, A)
    assert found.search(CELL, B) is not None
    assert len(found.finals(CELL)) == 2


def test_different_targets_and_regimes_are_not_merged(tmp_path: Path) -> None:
    one = read_recording(record_toy(tmp_path / "one.parquet", [CELL]))
    warm, other = tmp_path / "warm.parquet", tmp_path / "other.parquet"
    write_recording(warm, rows([CELL]), replace(ABOUT, regime=Regime("warm", "graph")))
    hardware = replace(TARGET.hardware, gpu="Another GPU")
    write_recording(other, rows([CELL]), replace(ABOUT, target=replace(TARGET, hardware=hardware)))
    with pytest.raises(MegatuneError, match="cannot merge one and warm: their regimes differ"):
        merge(tmp_path / "x.parquet", [one, read_recording(warm)])
    with pytest.raises(MegatuneError, match="cannot merge one and other: their targets differ"):
        merge(tmp_path / "x.parquet", [one, read_recording(other)])


def test_by_name_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record_toy(tmp_path / "toy.parquet", [CELL])
    assert recording(str(path)).workloads == [CELL]
    monkeypatch.setattr(recordings, "shipped_recordings", lambda: {"toy-gpu": path})
    assert recording("toy-gpu").workloads == [CELL]
    with pytest.raises(MegatuneError, match="no recording 'toy'; give a file, or one that is shipped: toy-gpu"):
        recording("toy")


def test_shipped_recordings_can_be_read() -> None:
    for path in shipped_recordings().values():
        read_recording(path)


def rewrite(path: Path, table: pa.Table, about: bytes | None = None) -> None:
    kept = pq.read_schema(path).metadata[METADATA]
    pq.write_table(table.replace_schema_metadata({METADATA: about or kept}), path)


def broken(path: Path, how: str) -> None:
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[METADATA])
    match how:
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "text":
            path.write_text("not Parquet at all")
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "plain":
            pq.write_table(table.replace_schema_metadata(None), path)
        case "version":
            rewrite(path, table, json.dumps(about | {"schema": 2}).encode())
        case "metadata":
            rewrite(path, table, b"[]")
        case "target":
            rewrite(path, table, json.dumps(about | {"target": {"hardware": {}}}).encode())
        case "columns":
            rewrite(path, table.drop_columns(["samples_us", "status"]))
        case "type":
            rewrite(path, table.set_column(0, "workload", pa.array(range(len(table)), pa.int32())))
        case "status":
            rewrite(path, table.set_column(5, "status", pa.array(["fine"] * len(table))))
        case "agree":
            rewrite(path, table.set_column(5, "status", pa.array(["crash"] * len(table))))
        case "nan":
            rewrite(path, table.set_column(11, "samples_us", pa.array([[float("nan")]] * len(table))))
        case "params":
            rewrite(path, table.set_column(2, "params", pa.array(["[1]"] * len(table))))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "cannot read recording .*: "),
        ("folder", "cannot read recording .*: "),
        ("text", "is not a recording: not a whole Parquet file"),
        ("cut", "is not a recording: not a whole Parquet file"),
        ("plain", "is not a recording: Parquet, but not written by Megatune"),
        ("version", "is a recording of version 2, this Megatune reads version 1: record again, or use the Megatune"),
        ("metadata", "is not a recording: its metadata cannot be read"),
        ("target", "is not a recording: its metadata cannot be read .*not a target"),
        ("columns", "is not a whole recording: it lacks the columns status, samples_us; record again"),
        ("type", "is not a whole recording .*; record again"),
        ("status", "is not a whole recording .*'fine'.*; record again"),
        ("agree", "is not a whole recording .*a row that is ok has no samples"),
        ("nan", "is not a whole recording .*a sample is not a positive number"),
        ("params", "is not a whole recording .*; record again"),
    ],
)
def test_broken_files_are_said_in_one_line(tmp_path: Path, how: str, message: str) -> None:
    path = record_toy(tmp_path / "toy.parquet", [CELL])
    broken(path, how)
    with pytest.raises(MegatuneError) as caught:
        read_recording(path)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_never_surprise(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("recordings") / "some.parquet"
    write_recording(path, [row(CELL, config, measurement(CELL, config)) for config in (A, B)], ABOUT)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    said = ""
    try:
        read_recording(path)
    except MegatuneError as error:
        said = str(error)
    assert "\n" not in said


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match=r"nothing to write to .*x.parquet"):
        write_recording(tmp_path / "x.parquet", [], ABOUT)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MegatuneError, match="cannot write recording"):
        write_recording(tmp_path / "file" / "x.parquet", rows([CELL]), ABOUT)
    for path in (tmp_path / "file" / "x.parquet", tmp_path / "file" / "deeper" / "x.parquet"):
        with pytest.raises(MegatuneError, match=r"x.parquet: .*/file is no directory; name another place"):
            check_place(path)
    check_place(tmp_path / "to" / "be" / "made" / "x.parquet")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EROFS, "or make this one writable"), (errno.ENOSPC, "free some space")]
)
def test_where_a_file_cannot_be_written_its_name_is_said_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise OSError(number, f"Failed to open local file '{tmp_path}/.x.parquet.1'. Detail: [errno {number}]")

    monkeypatch.setattr(pq, "write_table", fails)
    # A read-only file system does not let go of what is not there either.
    monkeypatch.setattr(Path, "unlink", fails)
    path = tmp_path / "x.parquet"
    with pytest.raises(MegatuneError) as caught:
        write_recording(path, rows([CELL]), ABOUT)
    assert str(caught.value).startswith(f"cannot write recording {path}: {os.strerror(number)}; ")
    assert remedy in str(caught.value)
    assert ".x.parquet" not in str(caught.value)
