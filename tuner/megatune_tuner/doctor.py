"""What this machine can do, what is missing, and how to get it.

Nothing here raises for a broken machine: what cannot be read becomes a finding.
"""

from __future__ import annotations

import csv
import enum
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from megatune_db.errors import DatabaseError
from megatune_db.location import Location
from megatune_db.location import Where
from megatune_db.location import locate
from megatune_db.session import open_database
from megatune_kernels.target import ARCHITECTURES

GPU_EXTRA = "pip install 'megatune[gpu]'"
TIMEOUT_S = 60.0
"""Seconds that a question to the driver may take; starting it on a machine of eight GPUs takes ten."""
FREE_BYTES = 2**30
"""Free disk below which a campaign of one model can fill it: samples and artifacts take some 100 MiB."""


class State(enum.StrEnum):
    """Of a finding."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``remedy`` says what to do unless the state is ok."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU; None is what could not be read."""

    index: int
    name: str
    capability: str | None
    memory_bytes: int | None
    sms: int | None
    l2_bytes: int | None
    nvlinks: int | None = None
    """Active ones."""
    peers: tuple[int, ...] | None = None
    """Indices of the GPUs whose memory this one can reach."""


@dataclass(frozen=True)
class Report:
    """Everything that was found."""

    findings: tuple[Finding, ...]
    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda: str | None
    """Highest CUDA version that the driver runs."""
    links: tuple[str, ...]
    """Lines of the topology between GPUs; empty for fewer than two."""

    @property
    def can_measure(self) -> bool:
        """Whether a campaign with the runner ``gpu`` can run here, on one GPU at least."""
        fine = [finding.subject for finding in self.findings if finding.state is State.OK]
        return {"launching", "compiling", "torch"} <= set(fine) and any(name.startswith("gpu ") for name in fine)

    def to_dict(self) -> dict[str, Any]:
        return {"can_measure": self.can_measure, **asdict(self)}


@dataclass(frozen=True)
class _Seen:
    gpus: list[Gpu]
    driver: str | None
    cuda: str | None
    trouble: str | None
    """Why there are no GPUs."""


def examine(database: Where | None = None) -> Report:
    """Look at the machine, and at the database where one is named."""
    seen = _look_for_gpus()
    gpus = seen.gpus
    findings = [_python(), *_gpus(gpus, seen.trouble), *_group(gpus)]
    where = None if database is None else locate(database)
    findings += [_launching(gpus), _compiling(), _torch(gpus), _disk(where)]
    if where is not None:
        findings.append(_database(where))
    links = _links() if len(gpus) > 1 else ()
    return Report(tuple(findings), tuple(gpus), seen.driver, seen.cuda, links)


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that a process can use here, whether or not anything can be measured on them."""
    return tuple(_look_for_gpus().gpus)


def _look_for_gpus() -> _Seen:
    gpus, cuda, trouble = _probed_gpus()
    listed, driver, tool_trouble = _listed_gpus()
    if trouble is not None:
        # The driver's tool comes with the driver, the bindings come with the extra.
        gpus, trouble = listed, tool_trouble
    elif listed and not gpus:
        trouble = f"none of {len(listed)} NVIDIA GPUs can be seen: look at CUDA_VISIBLE_DEVICES"
    return _Seen(gpus, driver, cuda, trouble)


def _python() -> Finding:
    return Finding("python", State.OK, f"{platform.python_version()} at {sys.executable}, {os.cpu_count()} cores")


def _gpus(gpus: Sequence[Gpu], trouble: str | None) -> list[Finding]:
    if not gpus:
        detail = trouble or "no NVIDIA GPU"
        return [Finding("gpu", State.MISSING, detail, "replay recordings here; measure on a machine with a GPU")]
    return [_gpu(gpu) for gpu in gpus]


def _gpu(gpu: Gpu) -> Finding:
    subject = f"gpu {gpu.index}"
    if gpu.memory_bytes is None:
        remedy = "see what nvidia-smi says of it; in MIG mode, make an instance first"
        return Finding(subject, State.BROKEN, f"{gpu.name}: its memory cannot be read", remedy)
    parts = [gpu.name, f"{gpu.memory_bytes / 2**30:.0f} GiB"]
    if gpu.sms is not None:
        parts.append(f"{gpu.sms} SMs")
    if gpu.l2_bytes is not None:
        parts.append(f"{gpu.l2_bytes / 2**20:.0f} MiB of L2")
    if gpu.capability is None:
        return Finding(subject, State.BROKEN, f"{', '.join(parts)}: its architecture cannot be read", "mend the driver")
    arch = f"sm_{gpu.capability.replace('.', '')}a"
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        detail = f"{', '.join(parts)}: no kernels for compute capability {gpu.capability}"
        return Finding(subject, State.MISSING, detail, f"measure on one of {known}")
    return Finding(subject, State.OK, f"{', '.join(parts)}, {arch}")


def _group(gpus: Sequence[Gpu]) -> list[Finding]:
    """Whether the GPUs can be measured together; nothing is found of a single one."""
    if len(gpus) < 2:
        return []
    subject = "group"
    unread = [gpu.index for gpu in gpus if gpu.peers is None]
    if unread:
        return [Finding(subject, State.MISSING, "which GPUs reach one another cannot be read", GPU_EXTRA)]
    apart = [(a.index, b.index) for a in gpus for b in gpus if a is not b and b.index not in (a.peers or ())]
    links = {gpu.nvlinks for gpu in gpus}
    what = f"{links.pop()} NVLinks each" if len(links) == 1 and None not in links else "NVLinks unlike or unknown"
    if apart:
        pairs = f"GPU {apart[0][0]} cannot reach the memory of GPU {apart[0][1]}"
        more = f" (and {len(apart) - 1} more pairs)" if len(apart) > 1 else ""
        remedy = "measure a group of GPUs that reach one another, or an emulated one"
        return [Finding(subject, State.BROKEN, f"{pairs}{more}, {what}", remedy)]
    return [Finding(subject, State.OK, f"{len(gpus)} GPUs reach one another's memory, {what}")]


def _launching(gpus: Sequence[Gpu]) -> Finding:
    core = _version("cuda-core")
    if core is None:
        return Finding("launching", State.MISSING, "cuda-core is not installed", GPU_EXTRA)
    if not gpus:
        return Finding("launching", State.MISSING, f"cuda-core {core}, but no GPU to launch on", "needs an NVIDIA GPU")
    return Finding("launching", State.OK, f"cuda-core {core}, cuda-python {_version('cuda-python')}")


def _compiling() -> Finding:
    """Import the DSL in a process of its own: it takes seconds, and a broken install aborts."""
    dsl = _version("nvidia-cutlass-dsl")
    if dsl is None:
        return Finding("compiling", State.MISSING, "nvidia-cutlass-dsl is not installed", GPU_EXTRA)
    _, trouble = _run([sys.executable, "-c", "import cutlass, cutlass.cute"])
    if trouble is not None:
        detail = f"nvidia-cutlass-dsl {dsl} cannot be imported: {trouble}"
        return Finding("compiling", State.BROKEN, detail, f"reinstall it: {GPU_EXTRA}")
    return Finding("compiling", State.OK, f"nvidia-cutlass-dsl {dsl}, for {', '.join(ARCHITECTURES)}")


def _torch(gpus: Sequence[Gpu]) -> Finding:
    found = _version("torch")
    if found is None:
        return Finding("torch", State.MISSING, "torch is not installed", GPU_EXTRA)
    output, trouble = _run([sys.executable, "-c", "import torch; print(torch.version.cuda or '')"])
    if trouble is not None:
        return Finding("torch", State.BROKEN, f"torch {found} cannot be imported: {trouble}", "reinstall torch")
    cuda = output.strip()
    if gpus and not cuda:
        return Finding("torch", State.BROKEN, f"torch {found} is built for the CPU alone", "install torch with CUDA")
    return Finding("torch", State.OK, f"torch {found}, {f'CUDA {cuda}' if cuda else 'for the CPU alone'}")


def _disk(database: Location | None) -> Finding:
    place = (database.folder if database is not None else Path()).absolute()
    while not place.exists():
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("disk", State.BROKEN, f"{place}: {error.strerror}", "name a database on another disk")
    detail = f"{free / 2**30:.1f} GiB free at {place}"
    if free < FREE_BYTES:
        return Finding("disk", State.BROKEN, detail, "free some space before a campaign")
    return Finding("disk", State.OK, detail)


def _database(where: Location) -> Finding:
    try:
        open_database(where, create=False, read_only=True).close()
    except DatabaseError as error:
        state = State.BROKEN if where.exists() else State.MISSING
        return Finding("database", state, str(error), "a campaign makes a new one" if state is State.MISSING else "")
    return Finding("database", State.OK, str(where))


def _probed_gpus() -> tuple[list[Gpu], str | None, str | None]:
    """GPUs and CUDA version by the driver's own interface; nothing and why where that is not to be had."""
    output, trouble = _run([sys.executable, "-m", "megatune_tuner.gpu_probe"])
    if trouble is not None:
        return [], None, trouble
    found = json.loads(output)
    return [Gpu(**{**gpu, "peers": _tuple(gpu.get("peers"))}) for gpu in found["gpus"]], found["cuda"], None


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _listed_gpus() -> tuple[list[Gpu], str | None, str | None]:
    """GPUs and driver version by the tool that comes with the driver."""
    if shutil.which("nvidia-smi") is None:
        return [], None, "no NVIDIA driver: nvidia-smi is not there"
    fields = "index,name,compute_cap,memory.total,driver_version"
    output, trouble = _run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    if trouble is not None:
        return [], None, f"nvidia-smi fails: {trouble}"
    gpus = []
    driver = None
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) != len(fields.split(",")) or not row[0].isdecimal():
            return [], None, f"nvidia-smi says: {', '.join(row)}"
        index, name, capability, mebibytes, driver = row
        gpus.append(
            Gpu(
                int(index),
                name,
                capability if capability.replace(".", "").isdecimal() else None,
                int(mebibytes) * 2**20 if mebibytes.isdecimal() else None,
                None,
                None,
            )
        )
    return gpus, driver, None


def _links() -> tuple[str, ...]:
    output, trouble = _run(["nvidia-smi", "topo", "-m"])
    if trouble is not None:
        return (f"unknown: {trouble}",)
    # The tool underlines its header with escape sequences, and explains itself after an empty line.
    matrix = output.replace("\x1b[4m", "").replace("\x1b[0m", "").strip().split("\n\n")[0]
    return tuple(line.expandtabs() for line in matrix.splitlines())


def _run(command: Sequence[str]) -> tuple[str, str | None]:
    """(output, None), or ("", why it failed in one line)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", str(error.strerror)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return "", said[-1] if said else f"exit status {done.returncode}"
    return done.stdout, None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
