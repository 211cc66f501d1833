"""Compiled kernels: how they are made without a GPU, and the store that keeps them.

The store is content-addressed and fails closed: the key covers the source of the operator and of what it shares with
others, the specialization, the architecture and the version of the DSL, and anything that cannot be written down
canonically raises. So a key that is found is always the right artifact.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import inspect
import json
import struct
import tempfile
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from megatune_kernels.audit import audit
from megatune_kernels.audit import rules_digest
from megatune_kernels.canonical import digest
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operators
from megatune_kernels.parameters import attributes
from megatune_kernels.parameters import sections
from megatune_kernels.space import Config
from megatune_kernels.target import Architecture

PACKAGE = Path(__file__).parent
DSL = "nvidia-cutlass-dsl"
LIBRARIES = ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")


def dsl_version() -> str:
    """Version of the installed DSL.

    :raises MegatuneError: when it is not installed.
    """
    try:
        return _version(DSL)
    except PackageNotFoundError:
        raise MegatuneError(
            f"{DSL} is not installed, so nothing can be compiled: pip install 'megatune[gpu]'"
        ) from None


_version = cache(version)


@cache
def compiler() -> dict[str, str]:
    """Versions of the DSL and of the libraries that are installed with it, which bring the assembler, by package.

    :raises MegatuneError: when the DSL is not installed.
    """
    found = {DSL: dsl_version()}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = _version(library)
    return found


@cache
def source_digest(operator_class: type[Operator]) -> str:
    """Digest of every source file in the folder of the operator, of the tables that are read there, and of the modules
    of other operators' folders from which device code is borrowed.

    :raises MegatuneError: when the source cannot be read.
    """
    try:
        folder = Path(inspect.getfile(operator_class)).parent
        files = sorted([*folder.rglob("*.py"), *folder.rglob("*.json")])
        sums = {str(file.relative_to(folder)): _sha256(file) for file in files}
        sums |= {name: _sha256(file) for name, file in _borrowed(files, folder).items()}
    except (OSError, TypeError, SyntaxError) as error:
        raise MegatuneError(
            f"cannot read the source of {operator_class.__name__}, so its artifacts have no key: {error}"
        ) from error
    return digest(sums)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _borrowed(files: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Modules that lie in folders of other operators of this package and that the files import, those that these
    import in turn among them."""
    found: dict[str, Path] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for module in _imported(node):
                name = str(module.relative_to(PACKAGE))
                elsewhere = module.parent not in (PACKAGE, PACKAGE / "models") and not module.is_relative_to(folder)
                if elsewhere and name not in found and module.is_file():
                    found[name] = module
                    waiting.append(module)
    return found


def _imported(node: ast.AST) -> Iterator[Path]:
    """Where the modules of this package lie, if there are such, that a statement imports."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        package, *parts = name.split(".")
        if package != PACKAGE.name:
            continue
        place = PACKAGE.joinpath(*parts)
        # What is no module is a name in one, or in the package itself.
        yield from (place.with_suffix(".py"), place / "__init__.py")
        if not place.with_suffix(".py").is_file() and not place.is_dir():
            yield from (place.parent.with_suffix(".py"), place.parent / "__init__.py")


def revision_of(tuned: Operator) -> str:
    """Digest of the source of every kernel that the operator's configs are made of.

    :raises MegatuneError: as ``source_digest``.
    """
    own = _source(tuned)
    used = {name: _source(operators()[name]) for name in tuned.uses}
    return digest({tuned.name: own, **used}) if used else own


def _source(tuned: Operator) -> str:
    """Digest of an operator's own source, and of what it adapts of another runtime."""
    own, elsewhere = source_digest(type(tuned)), tuned.source_elsewhere()
    return digest([own, elsewhere]) if elsewhere else own


def artifact_key(operator: Operator, workload: Workload, config: Config, arch: Architecture) -> str:
    """Digest of everything that the compiled code depends on.

    :raises MegatuneError: when one of the parts cannot be fingerprinted.
    """
    try:
        parts: dict[str, Any] = {
            "operator": operator.name,
            "source": _source(operator),
            "specialization": operator.specialization(workload, config),
            "arch": arch.name,
            "compiler": compiler(),
        }
        if operator.launch(workload, config).resident:
            # What is in the store has passed these rules.
            parts["audit"] = rules_digest()
        return digest(parts)
    except (TypeError, ValueError) as error:
        raise MegatuneError(f"{operator.name} gives a specialization that is not canonical: {error}") from error


def from_compiled(compiled: Any, key: str, arch: Architecture, *, polls: bool = False) -> Artifact:
    """The artifact of what ``compile_for`` returned.

    :param polls: whether its blocks wait for what others write: its ``Launch`` is ``resident``.
    :raises MegatuneError: when it does not hold exactly one kernel.
    :raises FailedAudit: when it polls and may hang.
    """
    entries = list(compiled.kernel_info)
    cubin = compiled.artifacts.CUBIN if compiled.artifacts is not None else None
    if len(entries) != 1 or not cubin:
        raise MegatuneError(f"expected one kernel with a cubin from the DSL, got {len(entries)}")
    if polls:
        audit(compiled.artifacts.PTX, cubin)
    registers, local_bytes = resources(cubin)
    return Artifact(key, arch.name, entries[0], cubin, registers, local_bytes)


def compile_for(arch: Architecture, function: Any, *arguments: Any, options: str = "") -> Any:
    """``cute.compile`` for an architecture, with PTX and cubin kept in the result. Needs no GPU.

    :param options: of the compiler, beside these.
    """
    from cutlass import cute

    # The DSL also writes both to a folder; the result holds them, so the folder goes.
    with tempfile.TemporaryDirectory(prefix="megatune-compile-") as folder:
        ours = f"--keep-ptx --keep-cubin --gpu-arch={arch.name} --dump-dir={folder}"
        return cute.compile(function, *arguments, options=f"{ours} {options}".rstrip())


_EIATTR_REGCOUNT = 0x2F
_EIATTR_FRAME_SIZE = 0x11


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory a thread, the most over the kernels of a cubin.

    Read from the ELF's ``.nv.info`` records (format, attribute, size, then symbol index and value), as
    ``cuobjdump -elf`` prints them: launching code needs neither a GPU nor the toolkit for it.
    """
    found = {_EIATTR_REGCOUNT: 0, _EIATTR_FRAME_SIZE: 0}
    for name, content in sections(cubin):
        for attribute in found if name == ".nv.info" else ():
            values = [struct.unpack_from("<I", record, 4)[0] for record in attributes(content, attribute)]
            found[attribute] = max([found[attribute], *values])
    return found[_EIATTR_REGCOUNT], found[_EIATTR_FRAME_SIZE]


MAGIC = b"megatune artifact 1\n"


def encode(artifact: Artifact) -> bytes:
    """The artifact as one object of a store or a bundle, with the SHA-256 of all that follows it inside."""
    meta = asdict(artifact)
    cubin: bytes = meta.pop("cubin")
    body = json.dumps(meta, sort_keys=True).encode() + b"\n" + cubin
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(content: bytes, key: str) -> Artifact | None:
    """The artifact of that key that ``encode`` wrote; None when it is another's, or damaged."""
    try:
        if not content.startswith(MAGIC):
            return None
        sha256, _, body = content[len(MAGIC) :].partition(b"\n")
        meta, _, cubin = body.partition(b"\n")
        whole = hashlib.sha256(body).hexdigest().encode() == sha256
        artifact = Artifact(cubin=cubin, **json.loads(meta)) if whole else None
    except (ValueError, TypeError):
        return None
    return artifact if artifact is not None and artifact.key == key else None


class ArtifactStore:
    """Artifacts in a folder, safe for many processes: a per-key lock is held while a key is compiled."""

    def __init__(self, root: Path) -> None:
        """:raises MegatuneError: when there can be no such folder."""
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MegatuneError(f"cannot keep artifacts in {root}: {error}") from error

    def get(self, key: str) -> Artifact | None:
        """The artifact of that key, or None when it was never built or its file is damaged."""
        folder = self._folder(key)
        try:
            meta = json.loads((folder / f"{key}.json").read_text())
            cubin = (folder / f"{key}.cubin").read_bytes()
            whole = hashlib.sha256(cubin).hexdigest() == meta.pop("sha256") and meta["key"] == key
            return Artifact(cubin=cubin, **meta) if whole else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, artifact: Artifact) -> Artifact:
        """Keep the artifact, and return what is kept; a reader sees all of it or nothing."""
        meta = asdict(artifact)
        cubin = meta.pop("cubin")
        meta["sha256"] = hashlib.sha256(cubin).hexdigest()
        folder = self._folder(artifact.key)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{artifact.key}.cubin", cubin)
        _write(folder / f"{artifact.key}.json", json.dumps(meta).encode())
        return artifact

    def get_or_compile(self, operator: Operator, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        """The artifact from the store, or compiled now and kept. Whatever the compiler raises comes through."""
        key = artifact_key(operator, workload, config, arch)
        found = self.get(key)
        if found is not None:
            return found
        with self._lock(key):
            found = self.get(key)
            return self.put(operator.compile(workload, config, arch)) if found is None else found

    def _folder(self, key: str) -> Path:
        return self.root / key[:2]

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        folder = self._folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _write(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            # A full disk: what was begun is in the way of making room.
            Path(file.name).unlink()
            raise
    Path(file.name).replace(path)
