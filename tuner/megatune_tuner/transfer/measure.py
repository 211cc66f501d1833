"""Measuring a bundle on a GPU host: ``python x.bundle -o x.result``, or ``megatune measure``.

Needs torch, cuda.core and numpy. Each measurement is on the disk before the next launch, so that a process that was
killed goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from megatune_db.records import Measurement
from megatune_db.records import Status
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_tuner import measuring
from megatune_tuner.finals import finalists
from megatune_tuner.progress import PlainProgress
from megatune_tuner.progress import Progress
from megatune_tuner.reasons import BASELINE
from megatune_tuner.reasons import FINALIST
from megatune_tuner.runners.base import Request
from megatune_tuner.runners.base import Runner
from megatune_tuner.runners.local import local_runner
from megatune_tuner.stopping import Stop
from megatune_tuner.transfer.bundle import Bundle
from megatune_tuner.transfer.bundle import BundleFile
from megatune_tuner.transfer.bundle import Packed
from megatune_tuner.transfer.bundle import PackedCell
from megatune_tuner.transfer.bundle import read_bundle
from megatune_tuner.transfer.result import Header
from megatune_tuner.transfer.result import Journal
from megatune_tuner.transfer.result import Taken
from megatune_tuner.transfer.result import open_journal

PROBE_LIMIT_S = 60.0
INTERRUPTED = 130

MakeRunner = Callable[[str, int, int], Runner]
"""Kind, world and index of the first GPU."""


@dataclass(frozen=True)
class MeasureSummary:
    """What measuring a bundle has come to."""

    path: Path
    target: Target
    measured: int
    """Measurements that this run took, finalists not counted."""
    finals: int
    """Measurements of finalists that this run took beside."""
    before: int
    """Measurements that an earlier run took."""
    works: bool
    """Whether anything that was measured works."""
    complete: bool


def measure_bundle(
    path: Path,
    out: Path,
    *,
    gpu: int = 0,
    make_runner: MakeRunner = local_runner,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> MeasureSummary:
    """Measure what a bundle asks for into the result ``out``, or go on with it.

    :param gpu: index of the GPU to measure on; of a group, the first of as many as it has ranks.
    :raises MegatuneError: when the bundle cannot be read, was changed, or is of another architecture than the GPU,
        when the result cannot be written or is another's, and where nothing can be measured.
    """
    file = read_bundle(path)
    _check_architecture(file, _capabilities(), gpu)
    with make_runner(file.bundle.runner, file.bundle.world, gpu) as runner:
        return _Measuring(file, runner, progress or Progress(), stop or Stop()).run(out)


def target_of(bundle: Bundle, found: Target) -> Target:
    """The target of what is measured here: the DSL is the one that compiled, which need not be installed."""
    return replace(found, toolchain=replace(found.toolchain, dsl=bundle.dsl))


def _check_architecture(file: BundleFile, capabilities: Sequence[str | None], gpu: int) -> None:
    """:raises MegatuneError: when one of the GPUs to measure on is known to be of another architecture."""
    ranks = file.bundle.world if file.bundle.runner == "group" else 1
    if capabilities and gpu + ranks > len(capabilities):
        behind = f" from GPU {gpu} on" if gpu else ""
        raise MegatuneError(f"{file.path} takes {ranks} GPUs{behind}, and this machine shows {len(capabilities)}")
    for index in range(gpu, gpu + ranks):
        capability = capabilities[index] if index < len(capabilities) else None
        if capability is not None:
            _check_arch(file, f"sm_{capability.replace('.', '')}a", f"GPU {index}")


def _check_arch(file: BundleFile, found: str, what: str) -> None:
    if found != file.bundle.arch:
        raise MegatuneError(
            f"{file.path} is compiled for {file.bundle.arch}, and {what} is {found}: make a bundle with arch = "
            f'"{found}" in the campaign file'
        )


def _capabilities() -> list[str | None]:
    """The compute capability of each GPU, e.g. ``9.0``; nothing where the driver does not say. Launches nothing."""
    command = [sys.executable, "-m", "megatune_tuner.gpu_probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
        return [each["capability"] for each in json.loads(done.stdout)["gpus"]] if not done.returncode else []
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return []  # the runner says what is wrong


class _Measuring:
    def __init__(self, file: BundleFile, runner: Runner, progress: Progress, stop: Stop) -> None:
        self._file = file
        self._bundle = file.bundle
        self._runner = runner
        self._progress = progress
        self._stop = stop
        self._target = target_of(file.bundle, runner.target)
        self._measured = 0
        self._finals = 0
        self._works = False

    def run(self, out: Path) -> MeasureSummary:
        _check_arch(self._file, self._target.hardware.arch, "the GPU here")
        with open_journal(out, self._header()) as journal:
            before = sum(1 for _ in journal.result.taken)
            self._progress.expect(self._bundle.requests)
            complete = all(self._cell(cell, journal) for cell in self._bundle.cells)
            if complete:
                journal.finish()
        return MeasureSummary(out, self._target, self._measured, self._finals, before, self._works, complete)

    def _header(self) -> Header:
        artifacts = [
            {
                "key": each.key,
                "arch": each.arch,
                "entry": each.entry,
                "registers": each.registers,
                "local_bytes": each.local_bytes,
                "cubin_bytes": len(each.cubin),
            }
            for each in self._file.artifacts.values()
        ]
        return Header(
            bundle=self._file.digest,
            campaign=self._bundle.campaign,
            text=self._bundle.text,
            budget=self._bundle.budget,
            version=version("megatune"),
            target=self._target,
            provenance=self._runner.provenance,
            facts=dict(self._runner.facts),
            artifacts=tuple(artifacts),
            requests=self._bundle.requests,
        )

    def _cell(self, cell: PackedCell, journal: Journal) -> bool:
        """Measure a cell and then its finalists; False when it is time to stop."""
        times: dict[Config, float] = {}
        for request in cell.requests:
            us = request.known_us
            if not request.known:
                found = journal.searched(cell.workload, request.config)
                if found is None:
                    if self._stop.requested:
                        return False
                    found = self._search(cell, request, journal)
                    self._measured += 1
                    best = min([*times.values(), *filter(None, [found.median_us])], default=None)
                    self._progress.measured(cell.workload, found.status, best)
                else:
                    self._progress.skip(1)
                us = found.median_us
            if us is not None:
                times[request.config] = us
        self._works |= bool(times)
        return journal.has_finals(cell.workload) or not times or self._end_cell(cell, times, journal)

    def _search(self, cell: PackedCell, request: Packed, journal: Journal) -> Measurement:
        if request.status is Status.OK:
            found = self._runner.measure(self._request(cell, request))
        else:
            found = self._unbuilt(cell, request)
        measurement = self._of_here(found, cell, request)
        journal.add([Taken(cell.workload, request.config, request.number, request.reason, measurement)])
        return measurement

    def _end_cell(self, cell: PackedCell, times: dict[Config, float], journal: Journal) -> bool:
        if self._stop.requested:
            return False
        tuned = [request.config for request in cell.requests if request.reason != BASELINE and request.config in times]
        ranked = sorted(tuned, key=lambda config: (times[config], str(config)))
        chosen = set(finalists(ranked, self._bundle.finalists, operator(cell.workload.operator).curve_of))
        if not chosen:
            return True
        requests = [
            request
            for request in cell.requests
            if request.config in chosen or (request.reason == BASELINE and request.config in times)
        ]
        requests.sort(key=lambda request: (request.reason == BASELINE, times[request.config]))
        measurements = self._runner.finalists([self._request(cell, request) for request in requests])
        journal.add(
            [
                Taken(
                    cell.workload, request.config, cell.last_number, FINALIST, self._of_here(measurement, cell, request)
                )
                for request, measurement in zip(requests, measurements, strict=True)
            ]
        )
        self._finals += len(requests)
        return True

    def _request(self, cell: PackedCell, one: Packed) -> Request:
        artifacts = [self._file.artifacts[key] for key in one.artifacts]
        return measuring.request(cell.workload, one.config, self._bundle.regime, artifacts, one.compile_s, one.runs)

    def _of_here(self, found: Measurement, cell: PackedCell, request: Packed) -> Measurement:
        """The measurement with the target of the artifacts' compiler and the revision of their kernels."""
        compiled = request.artifacts or request.status is not Status.OK
        revision = self._bundle.revisions[cell.workload.operator] if compiled else found.revision
        return replace(found, target=self._target.digest, revision=revision)

    def _unbuilt(self, cell: PackedCell, request: Packed) -> Measurement:
        asked = Request(cell.workload, request.config, self._bundle.regime, compile_s=request.compile_s)
        return measuring.not_built(asked, request.status, request.failure, self._target, self._runner.provenance)


def main(arguments: Sequence[str]) -> int:
    """What a bundle does when Python runs it; the exit code."""
    parser = argparse.ArgumentParser(
        prog="BUNDLE", description="Measure what this bundle asks for, or go on with it. Needs torch and cuda.core."
    )
    parser.add_argument("bundle", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path, help="the file for the measurements; by default beside the bundle")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU to measure on; of a group, its first")
    parser.add_argument("--check", action="store_true", help="say what is in the bundle, and measure nothing")
    given = parser.parse_args(list(arguments))
    out: Path = given.out or given.bundle.with_suffix(".result")
    try:
        if given.check:
            print("\n".join(lines_of(read_bundle(given.bundle))))
            return 0
        with Stop() as stop:
            done = measure_bundle(given.bundle, out, gpu=given.gpu, progress=PlainProgress(), stop=stop)
    except MegatuneError as error:
        print(f"megatune: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("megatune: interrupted; what was measured is kept", file=sys.stderr)
        return INTERRUPTED
    before = f", {done.before} were there" if done.before else ""
    print(f"measured now: {done.measured} and {done.finals} finalists{before} on {done.target}")
    if not done.complete:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    print(f"next, where the database is: megatune ingest {out}")
    if not done.works:
        print("megatune: no config works", file=sys.stderr)
        return 3
    return 0


def lines_of(file: BundleFile) -> Iterator[str]:
    """What a person wants to know of a bundle."""
    bundle = file.bundle
    ranks = f", {bundle.world} ranks ({bundle.runner})" if bundle.runner != "gpu" else ""
    yield f"{bundle.campaign}: {bundle.requests} configs in {len(bundle.cells)} cells for {bundle.arch}{ranks}"
    failed = sum(request.status is not Status.OK for cell in bundle.cells for request in cell.requests)
    unbuilt = f", {failed} configs cannot be built" if failed else ""
    yield f"{len(file.artifacts)} artifacts{unbuilt}, {file.size >> 10} KiB, digest {file.digest[:16]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
