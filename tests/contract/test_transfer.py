"""A bundle's way: packed with really compiled kernels, measured by a stand-in for the GPU, and taken in."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_db import queries
from megatune_db.records import CampaignState
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.records import TrialState
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_db.store import put_campaign
from megatune_db.store import put_target
from megatune_kernels.artifact import revision_of
from megatune_kernels.artifact_store import store_location
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import operator
from megatune_kernels.target import Target
from megatune_kernels.target import architecture
from megatune_planner.drafting import draft_plan
from megatune_tuner.campaign import run_campaign
from megatune_tuner.campaign_file import Campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.compiling import CompilePool
from megatune_tuner.runners import gpu
from megatune_tuner.runners import processes
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.gpu import GpuRunner
from megatune_tuner.runners.group import GroupRunner
from megatune_tuner.stopping import Stop
from megatune_tuner.transfer import measure
from megatune_tuner.transfer.bundle import BundleFile
from megatune_tuner.transfer.bundle import read_bundle
from megatune_tuner.transfer.ingest import Ingested
from megatune_tuner.transfer.ingest import ingest
from megatune_tuner.transfer.measure import measure_bundle
from megatune_tuner.transfer.packing import pack_file
from megatune_tuner.transfer.result import read_result
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome

TEXT = """
name = "packed"
arch = "sm_90a"
tokens = [1, 4]
variants = ["simt", "mma", "compile_error"]
[[shapes]]
operator = "projection"
n = 64
k = 256
[[shapes]]
operator = "faulty"
n = 1024
dtype = "fp32"
[budget]
trials = 3
finalists = 2
"""
FORBIDDEN = ("alembic", "cutlass", "fsspec", "optuna", "pandas", "pyarrow", "pydantic", "rich", "scipy", "sqlalchemy")
PLUGIN = Path(__file__).parent / "plugin"


def stand_in() -> Target:
    from stand_ins import TARGET

    found: Target = TARGET
    return found


def declared(text: str = TEXT) -> Campaign:
    return parse_campaign(text, source="packed.toml")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BundleFile]:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    folder = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEGATUNE_ARTIFACTS", str(folder / "artifacts"))
        yield pack_file(declared(), folder / "x.bundle")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU is a stand-in."""
    monkeypatch.setattr(processes, "_missing", lambda _: False)
    monkeypatch.setattr(gpu, "Child", lambda *_: Child("stand_ins", "gpu"))
    monkeypatch.setattr(measure, "_capabilities", lambda: ["9.0"])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "there.db") as opened:
        yield opened


def take_in(database: Database, result: Path) -> Ingested:
    with database.session() as session:
        return ingest(session, read_result(result))


def rows(database: Database) -> list[queries.ExportRow]:
    with database.session() as session:
        (target,) = queries.targets(session)
        return list(queries.export_rows(session, target=target.digest, regime=Regime()))


def test_a_bundle_holds_all_that_is_to_be_measured(packed: BundleFile) -> None:
    bundle = packed.bundle
    assert (bundle.campaign, bundle.arch, bundle.runner, bundle.world) == ("packed", "sm_90a", "gpu", 1)
    by_operator = {cell.workload.operator: cell for cell in bundle.cells}
    assert len(bundle.cells) == 4
    for cell in bundle.cells:
        # Of what cannot be built the space has two configs.
        count = 4 if cell.workload.operator == "projection" else 3
        assert [request.number for request in cell.requests] == list(range(1, count + 1))
        assert [request.reason for request in cell.requests].count("baseline") == 1
    for request in by_operator["projection"].requests:
        for key in request.artifacts:
            artifact = packed.artifacts[key]
            assert artifact.cubin.startswith(b"\x7fELF")
            assert (artifact.arch, artifact.key) == ("sm_90a", key)
        assert bool(request.artifacts) == (request.reason != "baseline")
    failed = [one for one in by_operator["faulty"].requests if one.status is Status.COMPILE_ERROR]
    assert [one.failure for one in failed] == ["RuntimeError: no such instruction"] * 2
    assert bundle.revisions["projection"] == revision_of(operator("projection"))


def test_the_same_content_is_the_same_file(packed: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", str(packed.path.parent / "artifacts"))
    # Of what cannot be built the seconds are kept that trying took.
    shape = '[[shapes]]\noperator = "faulty"\nn = 1024\ndtype = "fp32"\n'
    text = packed.bundle.text.replace(', "compile_error"', "").replace(shape, "")
    first, second = (pack_file(declared(text), tmp_path / name) for name in ("a.bundle", "b.bundle"))
    assert first.path.read_bytes() == second.path.read_bytes()


@pytest.mark.usefixtures("host")
def test_what_was_measured_comes_back_once(packed: BundleFile, tmp_path: Path, database: Database) -> None:
    out = tmp_path / "x.result"
    done = measure_bundle(packed.path, out)
    assert (done.measured, done.complete, done.works) == (14, True, True)
    first = take_in(database, out)
    assert (first.taken, first.new, first.complete) == (14 + done.finals, 14 + done.finals, True)
    before = rows(database)
    for _ in range(3):
        assert take_in(database, out).new == 0
    assert rows(database) == before

    by_status = {row.measurement.status for row in before if row.operator == "faulty"}
    assert by_status == {Status.OK, Status.COMPILE_ERROR}
    finals = [row for row in before if row.measurement.stage is Stage.FINAL]
    assert len(finals) == done.finals > 0
    # One session for each cell in which something that is tuned works.
    assert len({row.measurement.session for row in finals}) == 2
    assert {row.variant for row in finals} == {"cublas", "simt", "mma"}
    for row in before:
        taken = row.measurement
        assert (taken.provenance, str(taken.regime)) == (Provenance.MEASURED, "cold-graph")
        compiled = row.variant not in ("cublas", "torch")
        assert taken.revision == (packed.bundle.revisions[row.operator] if compiled else "")
        if compiled and row.operator == "projection":
            assert taken.artifact in packed.artifacts
    with database.session() as session:
        (row,) = queries.targets(session)
        # What compiled counts, not what is installed where it was measured.
        assert row.toolchain == {**stand_in().to_dict()["toolchain"], "dsl": packed.bundle.dsl}
        assert row.hardware == stand_in().to_dict()["hardware"]
        known = queries.artifacts(session, packed.artifacts)
    assert set(known) == set(packed.artifacts)
    assert all(row.cubin_bytes == len(packed.artifacts[key].cubin) for key, row in known.items())


@pytest.mark.usefixtures("host")
def test_many_take_in_one_result_at_once(packed: BundleFile, tmp_path: Path, database: Database) -> None:
    out = tmp_path / "x.result"
    done = measure_bundle(packed.path, out)
    command = [sys.executable, "-m", "megatune_dashboard", "ingest", str(out), "--db", str(database.location), "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    assert sorted(report["new"] for report in reports) == [0, 14 + done.finals]
    assert len(rows(database)) == 14 + done.finals


@pytest.mark.usefixtures("host")
def test_a_campaign_and_a_plan_count_on_what_was_taken_in(
    packed: BundleFile, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", str(packed.path.parent / "artifacts"))
    out = tmp_path / "x.result"
    measure_bundle(packed.path, out, make_runner=lambda *_: Telling())
    take_in(database, out)
    campaign = declared(packed.bundle.text)
    with database.session() as session:
        row = queries.campaign(session, "packed")
        assert row is not None
        assert (row.state, row.trials[TrialState.DONE]) == (CampaignState.STOPPED, len(rows(database)))
        plan = draft_plan(session, name="packed")
    shapes = {(each.name, shape.shape) for each in plan.content.operators for shape in each.shapes}
    assert ("projection", "k=256,n=64") in shapes
    # Everything that the budget asks for is known.
    with pytest.raises(NothingMeasured, match="everything that it asks for was measured on A GPU"):
        pack_file(campaign, tmp_path / "next.bundle", database.location)
    # A machine with a GPU and the compiler that made the bundle finds nothing left to measure.
    target = measure.target_of(packed.bundle, stand_in())
    with monkeypatch.context() as patch, closing(CompilePool(store_location(), architecture("sm_90a"))) as pool:
        patch.setattr(GpuRunner, "target", property(lambda _: target))
        with Telling() as runner:
            done_here = run_campaign(campaign, runner, database, builder=pool)
    assert (done_here.measured, done_here.finals, done_here.state) == (0, 0, CampaignState.FINISHED)
    assert done_here.speedup == pytest.approx(2, rel=0.01)

    more = pack_file(campaign, tmp_path / "next.bundle", database.location, configs=4)
    cells = [cell for cell in more.bundle.cells if cell.workload.operator == "projection"]
    for cell in cells:
        (new,) = [request for request in cell.requests if not request.known]
        assert new.number == 5
        # The best of before are measured again beside it, and the baseline.
        assert {request.config.variant for request in cell.requests if request.known} >= {"cublas", "simt", "mma"}
    next_out = tmp_path / "next.result"
    done = measure_bundle(more.path, next_out, make_runner=lambda *_: Telling())
    assert done.measured == more.bundle.requests
    assert take_in(database, next_out).new == done.measured + done.finals


class Telling(GpuRunner):
    """Gives each variant times of its own."""

    def _search(self, job: Job) -> Outcome:
        outcome = super()._search(job)
        us = {"simt": 4.0, "mma": 5.0}.get(job.config.variant, 8.0)
        samples = tuple(us + noise / 1000 for noise in range(12))
        return replace(outcome, samples_us=samples) if outcome.status is Status.OK else outcome

    def _final(self, jobs: Sequence[Job], seed: int) -> list[Outcome]:
        return [self._search(job) for job in jobs]


class Dying(GpuRunner):
    """Is interrupted after so many measurements."""

    left = 5

    def measure(self, request: Request) -> Measurement:
        if type(self).left == 0:
            raise KeyboardInterrupt
        type(self).left -= 1
        return super().measure(request)


@pytest.mark.usefixtures("host")
def test_what_was_interrupted_goes_on(
    packed: BundleFile, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.result"
    monkeypatch.setattr(Dying, "left", 5)
    with pytest.raises(KeyboardInterrupt):
        measure_bundle(packed.path, out, make_runner=lambda *_: Dying())
    kept = list(read_result(out).taken)
    assert sum(one.measurement.stage is Stage.SEARCH for one in kept) == 5
    assert not read_result(out).complete
    # What there is can be taken in, and the rest later.
    part = take_in(database, out)
    assert (part.new, part.complete) == (len(kept), False)
    # Killed in the midst of writing a line.
    with out.open("ab") as file:
        file.write(b'0123456789abcdef {"taken":[')
    stop = Stop()
    stop.request()
    assert not measure_bundle(packed.path, out, stop=stop).complete
    done = measure_bundle(packed.path, out)
    assert (done.before, done.measured, done.complete) == (len(kept), 9, True)
    whole = read_result(out)
    assert list(whole.taken)[: len(kept)] == kept
    searched = [one for one in whole.taken if one.measurement.stage is Stage.SEARCH]
    assert len({(one.workload, one.config) for one in searched}) == len(searched) == 14
    assert take_in(database, out).new == 14 + sum(len(line) > 1 for line in whole.lines) * 3 - len(kept)
    again = measure_bundle(packed.path, out)
    assert (again.measured, again.finals, again.complete) == (0, 0, True)
    assert read_result(out) == whole


SCRIPT = """
import os, signal, sys
bundle, out, die_after = sys.argv[1:4]
sys.path.insert(0, bundle)
os.environ["PYTHONPATH"] = os.pathsep.join([bundle, os.environ["PYTHONPATH"]])

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {forbidden}:
            raise ImportError(f"{{name}} is not on a GPU host")

sys.meta_path.insert(0, Refused())
import megatune_kernels, megatune_tuner.runners.gpu as gpu, megatune_tuner.runners.processes as processes
from megatune_tuner.transfer import measure
from megatune_tuner.workers.child import Child
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
assert megatune_kernels.__file__.startswith(bundle), megatune_kernels.__file__
processes._missing = lambda _: False
gpu.Child = lambda *_: Child("stand_ins", "gpu")
taken = gpu.GpuRunner.measure

def measured(self, request):
    measured.left -= 1
    if measured.left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return taken(self, request)

measured.left = int(die_after)
gpu.GpuRunner.measure = measured
code = measure.main([bundle, "-o", out])
print(*sorted({{*{forbidden}, "torch", "typer"}} & {{name.partition(".")[0] for name in sys.modules}}))
sys.exit(code)
"""


def on_a_gpu_host(bundle: Path, out: Path, die_after: int = 100) -> subprocess.CompletedProcess[str]:
    """Run the bundle's own code where nothing but numpy, torch and cuda.core can be imported."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(forbidden=FORBIDDEN), str(bundle), str(out), str(die_after)],
        env={**os.environ, "PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_a_gpu_host_needs_neither_the_dsl_nor_a_database(packed: BundleFile, tmp_path: Path) -> None:
    out = tmp_path / "x.result"
    killed = on_a_gpu_host(packed.path, out, die_after=3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list(read_result(out).taken)) == 3
    done = on_a_gpu_host(packed.path, out)
    assert done.returncode == 0, done.stderr
    assert "measured now: 11 and " in done.stdout
    # What is imported beside the standard library is numpy: torch comes with the process that drives the GPU.
    assert done.stdout.splitlines()[-1] == ""
    assert read_result(out).complete


@pytest.mark.torch
def test_the_process_that_drives_the_gpu_needs_torch_and_cuda_alone(packed: BundleFile) -> None:
    code = SCRIPT.partition("import megatune_kernels")[0].format(forbidden=FORBIDDEN) + (
        "import megatune_tuner.workers.gpu_timing, megatune_tuner.workers.group_timing\n"
        "from megatune_kernels.operator import operators\n"
        "print(*operators())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(packed.path), "", "0"],
        env={**os.environ, "PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"projection", "faulty"} <= set(done.stdout.split())


def changed(bundle: Path, out: Path, member: str, content: bytes | None) -> Path:
    """The bundle with one member changed, or left out."""
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            kept = old.read(name) if name != member else content
            if kept is not None:
                new.writestr(name, kept)
        if member not in old.namelist() and content is not None:
            new.writestr(member, content)
    return out


def test_a_tampered_bundle_is_one_line(packed: BundleFile, tmp_path: Path) -> None:
    key = sorted(packed.artifacts)[0]
    out = tmp_path / "changed.bundle"
    with zipfile.ZipFile(packed.path) as archive:
        manifest = archive.read("manifest.json")
    for member, content in (
        (f"artifacts/{key}", b"other code"),
        (f"artifacts/{key}", None),
        ("megatune_tuner/transfer/measure.py", b"import os"),
        ("sitecustomize.py", b"import os"),
        ("manifest.json", manifest.replace(b'"finalists": 2', b'"finalists": 9')),
        ("manifest.json", b"{}"),
    ):
        with pytest.raises(MegatuneError, match=r"was changed or damaged on its way \(.*\): copy it again$") as caught:
            read_bundle(changed(packed.path, out, member, content))
        assert "\n" not in str(caught.value)
    content = bytearray(packed.path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    out.write_bytes(content)
    with pytest.raises(MegatuneError, match="was changed or damaged"):
        read_bundle(out)
    out.write_bytes(packed.path.read_bytes()[:5000])
    with pytest.raises(MegatuneError, match="was changed or damaged"):
        read_bundle(out)
    run = [sys.executable, "-m", "megatune_dashboard", "measure", str(out), "-o", str(tmp_path / "x.result")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "x.result").exists()


def test_what_is_no_bundle_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MegatuneError, match=r"cannot read the bundle .*nowhere: No such file"):
        read_bundle(tmp_path / "nowhere")
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(MegatuneError, match="is no bundle: make one with megatune bundle"):
        read_bundle(other)


@pytest.mark.usefixtures("host")
def test_another_architecture_is_refused_before_anything_starts(
    packed: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> GpuRunner:
        raise AssertionError("a runner was started")

    monkeypatch.setattr(measure, "_capabilities", lambda: ["9.0", "10.3"])
    message = r'x.bundle is compiled for sm_90a, and GPU 1 is sm_103a: make a bundle with arch = "sm_103a" in the camp'
    with pytest.raises(MegatuneError, match=message):
        measure_bundle(packed.path, tmp_path / "x.result", gpu=1, make_runner=never)
    with pytest.raises(MegatuneError, match="takes 1 GPUs from GPU 2 on, and this machine shows 2"):
        measure_bundle(packed.path, tmp_path / "x.result", gpu=2, make_runner=never)
    # Where the driver does not say, the runner does, before it measures.
    monkeypatch.setattr(measure, "_capabilities", list)
    monkeypatch.setattr(GpuRunner, "target", property(lambda _: _of_arch("sm_100a")))
    monkeypatch.setattr(GpuRunner, "measure", never)
    with pytest.raises(MegatuneError, match=r"x.bundle is compiled for sm_90a, and the GPU here is sm_100a"):
        measure_bundle(packed.path, tmp_path / "x.result")
    assert not (tmp_path / "x.result").exists()


def _of_arch(arch: str) -> Target:
    stored = stand_in().to_dict()
    return Target.from_dict({**stored, "hardware": {**stored["hardware"], "arch": arch}})


@pytest.mark.usefixtures("host")
def test_a_tampered_result_is_one_line(packed: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "x.result"
    measure_bundle(packed.path, out)
    lines = out.read_bytes().splitlines(keepends=True)
    copy = tmp_path / "copy.result"
    faster = [line.replace(b'"samples_us":[5.0', b'"samples_us":[4.0') for line in lines]
    assert faster != lines
    for number, changed_lines in (
        (2, faster),
        (3, [*lines[:2], *lines[3:]]),
        (3, [*lines[:2], lines[3], lines[2], *lines[4:]]),
        (1, lines[1:]),
    ):
        copy.write_bytes(b"".join(changed_lines))
        with pytest.raises(
            MegatuneError, match=rf"was changed or damaged on its way \(line {number}\): copy it again$"
        ):
            read_result(copy)
    # Whoever makes digests of his own cannot mix in what was measured elsewhere, or what no clock tells.
    for old, new in (
        (rb'"provenance":"measured","reason"', b'"provenance":"replayed","reason"'),
        (rb'"median_us":\d', b'"median_us":NaN,"x":1'),
        (rb'"median_us":\d', b'"median_us":-1'),
        (rb'^{"taken".*', b'["taken"]'),
        (rb'^{"taken".*', b'{"taken":'),
    ):
        text, last = b"", ""
        for line in lines:
            body = re.sub(old, new, line.partition(b" ")[2].rstrip(b"\n"))
            last = hashlib.sha256(last.encode() + body).hexdigest()
            text += last.encode() + b" " + body + b"\n"
        copy.write_bytes(text)
        with pytest.raises(MegatuneError, match="is no whole result"):
            read_result(copy)
    for mine in (b"a note without an end", b"one\rtwo\n", b"\0" * 100):
        copy.write_bytes(mine)
        with pytest.raises(MegatuneError, match=r"is no result: (name|measure a bundle into) another file"):
            measure_bundle(packed.path, copy)
        assert copy.read_bytes() == mine
    copy.write_bytes(b"{}\n")
    with pytest.raises(MegatuneError, match="is no result: measure a bundle into"):
        read_result(copy)
    copy.write_bytes(b"")
    with pytest.raises(MegatuneError, match="is no result"):
        read_result(copy)


@pytest.mark.usefixtures("host")
def test_a_result_is_of_one_bundle_and_one_target(
    packed: BundleFile, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", str(packed.path.parent / "artifacts"))
    out = tmp_path / "x.result"
    measure_bundle(packed.path, out)
    other = pack_file(declared(packed.bundle.text), tmp_path / "other.bundle", configs=2)
    with pytest.raises(MegatuneError, match=r"x.result is the result of another bundle, of packed: name another file"):
        measure_bundle(other.path, out)
    here = stand_in().to_dict()
    elsewhere = Target.from_dict({**here, "toolchain": {**here["toolchain"], "cuda": "1"}})
    monkeypatch.setattr(GpuRunner, "target", property(lambda _: elsewhere))
    with pytest.raises(MegatuneError, match=r"x.result was begun on A GPU .*, and this is A GPU .*: name another file"):
        measure_bundle(packed.path, out)
    # What it measures is beside what was measured first, and takes no trial from it.
    measure_bundle(packed.path, tmp_path / "y.result")
    taken_in = [take_in(database, tmp_path / name) for name in ("x.result", "y.result", "x.result")]
    assert [each.new > 0 for each in taken_in] == [True, True, False]
    with database.session() as session:
        row = queries.campaign(session, "packed")
        assert row is not None
        counted = {each.measurement_id for each in queries.trials(session, row.id)}
    assert counted == set(range(1, taken_in[0].taken + 1))


@pytest.mark.usefixtures("host")
def test_a_full_disk_is_one_line_and_what_was_kept_stays(
    packed: BundleFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.result"
    written = 0

    def full(_: int) -> None:
        nonlocal written
        written += 1
        if written > 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MegatuneError, match=r"cannot write the result .*: No space left on device; make room, and mea"):
        measure_bundle(packed.path, out)
    monkeypatch.undo()
    assert len(list(read_result(out).taken)) >= 3


@pytest.mark.usefixtures("host")
def test_two_processes_do_not_measure_into_one_result(packed: BundleFile, tmp_path: Path) -> None:
    out = tmp_path / "x.result"
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(GpuRunner):
        def measure(self, request: Request) -> Measurement:
            begun.set()
            assert go_on.wait(60)
            return super().measure(request)

    running = threading.Thread(
        target=measure_bundle, args=(packed.path, out), kwargs={"make_runner": lambda *_: Waiting()}
    )
    running.start()
    try:
        assert begun.wait(60)
        with pytest.raises(MegatuneError, match="another process measures into"):
            measure_bundle(packed.path, out)
    finally:
        go_on.set()
        running.join()
    assert read_result(out).complete


GROUP = """
name = "ranks"
arch = "sm_90a"
tokens = [4]
variants = ["full_fanout"]
[[shapes]]
operator = "reduction"
width = 1024
world = 2
[runner]
kind = "group"
[budget]
trials = 1
finalists = 1
"""


@pytest.mark.usefixtures("packed")
def test_a_group_measures_a_bundle_of_its_world(tmp_path: Path, database: Database, host: None) -> None:
    made = pack_file(declared(GROUP), tmp_path / "ranks.bundle")
    assert (made.bundle.runner, made.bundle.world) == ("group", 2)
    with pytest.raises(MegatuneError, match=r"ranks.bundle takes 2 GPUs, and this machine shows 1"):
        measure_bundle(made.path, tmp_path / "ranks.result")
    asked: list[tuple[str, int, int]] = []

    def ranks(kind: str, world: int, first: int) -> GroupRunner:
        asked.append((kind, world, first))
        return GroupRunner(world, rank_class="fake_ranks:FakeRank")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_capabilities", lambda: ["9.0"] * 8)
        done = measure_bundle(made.path, tmp_path / "ranks.result", gpu=2, make_runner=ranks)
    assert asked == [("group", 2, 2)]
    assert done.measured == made.bundle.requests
    take_in(database, tmp_path / "ranks.result")
    found = {row.variant: row for row in rows(database)}
    assert found["full_fanout"].world == 2
    assert found["full_fanout"].measurement.status is Status.OK


CHAIN = """
name = "chain"
operators = ["prefetch"]
tokens = [1]
variants = ["plain"]
[[shapes]]
operator = "prefetch"
idle_ns = 3000
n1 = 256
k1 = 256
[budget]
trials = 1
finalists = 1
"""


@pytest.mark.usefixtures("packed", "host")
def test_a_chain_travels_with_the_artifacts_of_its_parts(tmp_path: Path, database: Database) -> None:
    # A prefetch fits into an L2 of a known size, so that a target has to be known.
    with pytest.raises(MegatuneError, match="arch: a bundle is compiled for one architecture"):
        pack_file(declared(CHAIN), tmp_path / "chain.bundle")
    here = replace(stand_in(), hardware=replace(stand_in().hardware, l2_bytes=50 << 20))
    with database.session() as session:
        stored = here.to_dict()
        put_target(session, digest=here.digest, hardware=stored["hardware"], toolchain=stored["toolchain"])
    made = pack_file(declared(CHAIN), tmp_path / "chain.bundle", database.location, target=here.digest[:6])
    ((plain, none),) = [cell.requests for cell in made.bundle.cells]
    assert (plain.config.variant, none.config.variant) == ("plain", "none")
    asked: list[Request] = []

    class Asked(GpuRunner):
        def measure(self, request: Request) -> Measurement:
            asked.append(request)
            return super().measure(request)

    measure_bundle(made.path, tmp_path / "chain.result", make_runner=lambda *_: Asked())
    for packed_one, request in zip((plain, none), asked, strict=True):
        parts = operator("prefetch").parts(request.workload, request.config)
        assert len(request.parts) == len(parts) >= 2
        assert tuple(part.key for part in request.parts) == packed_one.artifacts
    result = read_result(tmp_path / "chain.result")
    assert {one.measurement.revision for one in result.taken} == {revision_of(operator("prefetch"))}
    assert take_in(database, tmp_path / "chain.result").new == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('arch = "sm_90a"\n', "", 'arch: a bundle is compiled for one architecture: name it, e.g. arch = "sm_90a"'),
        ("trials = 3", "minutes = 1", "budget: a bundle asks for a number of configs in each cell: give trials, or"),
        (
            "[budget]",
            '[runner]\nkind = "replay"\nrecording = "kimi-k3-h200"\n[budget]',
            "runner.kind: a replay needs no",
        ),
    ],
)
def test_what_cannot_be_packed_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(MegatuneError, match=r"^packed\.toml: ") as caught:
        pack_file(declared(TEXT.replace(old, new)), tmp_path / "x.bundle")
    assert message in str(caught.value)
    assert not (tmp_path / "x.bundle").exists()


def test_the_command_goes_on_with_a_campaign_of_the_database(
    packed: BundleFile, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATUNE_ARTIFACTS", str(packed.path.parent / "artifacts"))
    with database.session() as session:
        put_campaign(session, name="packed", file_text=packed.bundle.text, file_digest="file")
    out = tmp_path / "next.bundle"
    run = ["bundle", "packed", "--db", str(database.location), "-o", str(out), "--configs", "1", "--json"]
    done = CliRunner().invoke(app, run)
    report = json.loads(done.stdout)
    assert (report["campaign"], report["cells"], report["configs"], report["arch"]) == ("packed", 4, 8, "sm_90a")
    assert report["digest"] == read_bundle(out).digest
    unknown = CliRunner().invoke(app, ["bundle", "other", "--db", str(database.location), "-o", str(out)])
    assert unknown.exit_code == 2
    assert "there is no file other, and no campaign of that name in" in unknown.stderr


def test_a_bundle_runs_by_itself(packed: BundleFile, tmp_path: Path) -> None:
    copy = tmp_path / "copied.bundle"
    shutil.copy(packed.path, copy)
    done = subprocess.run(
        [sys.executable, str(copy), "--check"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "packed: 14 configs in 4 cells for sm_90a" in done.stdout
    assert packed.digest[:16] in done.stdout
