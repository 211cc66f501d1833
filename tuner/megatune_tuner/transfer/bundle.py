"""The file that carries requests and compiled kernels to a GPU host without a network or a compiler.

A bundle is a zip file that Python can run: beside the artifacts and the manifest that says what is to be measured it
holds the part of Megatune that measures, so that the host needs torch and cuda.core and nothing else. Every member's
SHA-256 is in the manifest, and the manifest's own is the digest of the bundle.

What this module imports, a GPU host has to have: the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from megatune_db.records import Regime
from megatune_db.records import Status
from megatune_kernels.artifact import decode
from megatune_kernels.artifact import encode
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config

FORMAT = "megatune-bundle"
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
DIGEST = "manifest.sha256"
ARTIFACTS = "artifacts"
LAUNCHER = "__main__.py"
LAUNCHER_TEXT = """\
import os
import sys

here = os.path.abspath(sys.path[0])
# The processes that measure are started anew and find Megatune here too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))

from megatune_tuner.transfer.measure import main

sys.exit(main([here, *sys.argv[1:]]))
"""
STAMP = (1980, 1, 1, 0, 0, 0)
"""Of every member: the same content is the same file."""


@dataclass(frozen=True)
class Packed:
    """One config of a cell."""

    number: int
    """Of its trial."""
    reason: str
    """Who proposed it."""
    config: Config
    artifacts: tuple[str, ...] = ()
    """Keys, one for each of ``Operator.parts``; none for what a library launches."""
    compile_s: float = 0.0
    status: Status = Status.OK
    """Anything else is what building it gave: it is not launched."""
    failure: str = ""
    """Why it could not be built."""
    known_us: float | None = None
    """Microseconds where it was measured before: then it is measured again among the finalists alone."""
    known: bool = False
    """Whether it was measured before, whatever came of it."""
    runs: Config | None = None
    """What is launched in its name (``Operator.stands_for``); None: itself."""


@dataclass(frozen=True)
class PackedCell:
    """What is to be measured of one workload."""

    workload: Workload
    requests: tuple[Packed, ...]
    last_number: int
    """Of the last trial, under which finalists are kept."""


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, without the artifacts and the code."""

    campaign: str
    """Name."""
    text: str
    """The campaign file's."""
    budget: Mapping[str, Any]
    version: str
    """Of Megatune."""
    arch: str
    dsl: str
    """Version of the DSL that compiled the artifacts."""
    regime: Regime
    runner: str
    """``gpu``, ``group`` or ``emulated``."""
    world: int
    """Ranks; 1 on one GPU."""
    finalists: int
    revisions: Mapping[str, str]
    """Digest of the source of the kernels, by operator."""
    cells: tuple[PackedCell, ...]

    @property
    def requests(self) -> int:
        """How many configs are to be measured, finalists not counted."""
        return sum(not request.known for cell in self.cells for request in cell.requests)

    def to_dict(self) -> dict[str, Any]:
        return {
            "campaign": self.campaign,
            "text": self.text,
            "budget": dict(self.budget),
            "version": self.version,
            "arch": self.arch,
            "dsl": self.dsl,
            "regime": str(self.regime),
            "runner": self.runner,
            "world": self.world,
            "finalists": self.finalists,
            "revisions": dict(self.revisions),
            "cells": [
                {
                    "workload": cell.workload.to_dict(),
                    "requests": [_request(one) for one in cell.requests],
                    "last_number": cell.last_number,
                }
                for cell in self.cells
            ],
        }

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> Bundle:
        fields = dict(value)
        cells = tuple(
            PackedCell(workload_of(cell["workload"]), tuple(map(_packed, cell["requests"])), cell["last_number"])
            for cell in fields.pop("cells")
        )
        return Bundle(cells=cells, regime=Regime.parse(fields.pop("regime")), **fields)


def _request(one: Packed) -> dict[str, Any]:
    return {
        "number": one.number,
        "reason": one.reason,
        "variant": one.config.variant,
        "params": one.config.params,
        "artifacts": list(one.artifacts),
        "compile_s": one.compile_s,
        "status": one.status.value,
        "failure": one.failure,
        "known_us": one.known_us,
        "known": one.known,
        "runs": None if one.runs is None else {"variant": one.runs.variant, "params": one.runs.params},
    }


def _packed(value: Mapping[str, Any]) -> Packed:
    fields = dict(value)
    config = Config.of(fields.pop("variant"), fields.pop("params"))
    status, artifacts = Status(fields.pop("status")), tuple(fields.pop("artifacts"))
    stands = fields.pop("runs")
    runs = None if stands is None else Config.of(stands["variant"], stands["params"])
    return Packed(config=config, status=status, artifacts=artifacts, runs=runs, **fields)


def workload_of(value: Mapping[str, Any]) -> Workload:
    """The workload that ``Workload.to_dict`` wrote down."""
    fields = dict(value)
    return Workload.of(fields.pop("operator"), fields.pop("dims"), fields.pop("tokens"), **fields)


@dataclass(frozen=True)
class BundleFile:
    """A bundle on disk, every member of which was compared with its digest."""

    path: Path
    digest: str
    """SHA-256 of the manifest, hexadecimal."""
    bundle: Bundle
    size: int
    """Bytes of the file."""
    _keys: frozenset[str] = field(default=frozenset())

    @cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """The compiled kernels by key."""
        found = {}
        with zipfile.ZipFile(self.path) as archive:
            for key in sorted(self._keys):
                artifact = decode(archive.read(f"{ARTIFACTS}/{key}"), key)
                if artifact is None:
                    raise tampered(self.path, f"{ARTIFACTS}/{key} is no artifact of that key")
                found[key] = artifact
        return found


def write_bundle(path: Path, bundle: Bundle, artifacts: Sequence[Artifact], code: Mapping[str, bytes]) -> BundleFile:
    """Write a bundle; a file that is there is replaced once the new one is complete.

    :param code: by path, the part of Megatune that measures.
    :raises MegatuneError: when the file cannot be written.
    """
    members: dict[str, bytes] = {LAUNCHER: LAUNCHER_TEXT.encode(), **code}
    members |= {f"{ARTIFACTS}/{artifact.key}": encode(artifact) for artifact in artifacts}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(members.items())}
    manifest = {"format": FORMAT, "schema": SCHEMA_VERSION, "bundle": bundle.to_dict(), "files": sums}
    text = json.dumps(manifest, sort_keys=True, allow_nan=False).encode()
    members |= {MANIFEST: text, DIGEST: f"{hashlib.sha256(text).hexdigest()}\n".encode()}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(members):
                archive.writestr(zipfile.ZipInfo(name, STAMP), members[name], zipfile.ZIP_DEFLATED)
        partial.replace(path)
    except OSError as error:
        raise MegatuneError(f"cannot write the bundle {path}: {error.strerror or error}; name another place") from error
    finally:
        partial.unlink(missing_ok=True)
    return read_bundle(path)


def read_bundle(path: Path) -> BundleFile:
    """Read a bundle, and compare every member with the digest that the manifest has of it.

    :raises MegatuneError: when it cannot be read, is no bundle, is of another version, or was changed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if MANIFEST not in names or DIGEST not in names:
                raise MegatuneError(f"{path} is no bundle: make one with megatune bundle")
            text = archive.read(MANIFEST)
            digest = hashlib.sha256(text).hexdigest()
            if archive.read(DIGEST).strip() != digest.encode():
                raise tampered(path, f"{MANIFEST} is not what {DIGEST} says")
            manifest = _manifest(path, text)
            _compare(path, archive, names, manifest["files"])
    except OSError as error:
        raise MegatuneError(f"cannot read the bundle {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise tampered(path, str(error)) from error
    try:
        bundle = Bundle.from_dict(manifest["bundle"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MegatuneError(f"{path} is no whole bundle ({error}): make it again with megatune bundle") from error
    keys = {name.partition("/")[2] for name in manifest["files"] if name.startswith(f"{ARTIFACTS}/")}
    asked = {key for cell in bundle.cells for request in cell.requests for key in request.artifacts}
    if not asked <= keys:
        raise MegatuneError(f"{path} is no whole bundle (it lacks {len(asked - keys)} artifacts): make it again")
    return BundleFile(path, digest, bundle, path.stat().st_size, frozenset(keys))


def _manifest(path: Path, text: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(text)
        kind, schema = manifest["format"], manifest["schema"]
        dict(manifest["files"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MegatuneError(f"{path} is no bundle: its manifest cannot be read ({error})") from error
    if (kind, schema) != (FORMAT, SCHEMA_VERSION):
        raise MegatuneError(
            f"{path} is a {kind} of version {schema}, this Megatune reads version {SCHEMA_VERSION}: make it again, or "
            f"run it by itself: python {path}"
        )
    return manifest


def _compare(path: Path, archive: zipfile.ZipFile, names: Sequence[str], sums: Mapping[str, str]) -> None:
    here = [name for name in names if name not in (MANIFEST, DIGEST)]
    if len(set(here)) < len(here) or set(here) != set(sums):
        odd = next(iter(sorted({*here} ^ {*sums})), "a member twice")
        raise tampered(path, f"its manifest and its members differ: {odd}")
    for name in changed_members(archive, sums):
        raise tampered(path, f"{name} is not what it was when it was packed")


def changed_members(archive: zipfile.ZipFile, sums: Mapping[str, str]) -> Iterator[str]:
    """Members whose SHA-256 is not the one that the manifest has."""
    for name, expected in sums.items():
        if hashlib.sha256(archive.read(name)).hexdigest() != expected:
            yield name


def tampered(path: Path, why: str) -> MegatuneError:
    """That a bundle is not what was packed."""
    return MegatuneError(f"{path} was changed or damaged on its way ({why}): copy it again")
