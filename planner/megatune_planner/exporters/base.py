"""The contract of an exporter: what turns a plan into the files that a runtime reads.

A new exporter is one file with a subclass of ``Exporter`` and one entry point in the group ``megatune.exporters``;
another package can add one in the same way.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC
from abc import abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.runtime_source import installed
from megatune_kernels.space import Config
from megatune_planner.evidence import Expresses
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.installed import differences
from megatune_planner.plan import Plan


class Exporter(ABC):
    """Implementations hold no state."""

    name: str
    what: str
    """One line: what the files are for."""
    runtime: str | None = None
    """Distribution whose format is written; None for a format of our own."""
    runtime_version: str | None = None
    """The one version of it whose format this is."""
    relies_on: Names = MappingProxyType({})
    """What the files rest on in its source: looked up where it is installed."""

    def expresses(self, workload: Workload, config: Config) -> bool:
        """Whether the files can name this config at this workload.

        Planning keeps the best of them, so that an export needs the plan alone. An exporter that writes the plan's
        own decisions, and nothing besides, need not answer.
        """
        return False

    def needs(self, plan: Plan) -> Names:
        """What the files of this plan rest on in the runtime's source.

        :raises MegatuneError: when the plan cannot be expressed.
        """
        return self.relies_on

    @abstractmethod
    def files(self, plan: Plan) -> Mapping[str, str | bytes]:
        """Text, or bytes, by file name, valid and complete.

        Depends on the plan alone: the same plan gives the same bytes.

        :raises MegatuneError: when the plan cannot be expressed, and says why.
        """

    def check_runtime(self) -> str:
        """Look at the runtime that is installed here, and say in one line what that shows; empty for no runtime.

        :raises MegatuneError: when it is installed in another version than the one whose format is written, or differs
            from it in what the files rest on.
        """
        if self.runtime is None:
            return ""
        try:
            runtime = installed(self.runtime)
        except PackageNotFoundError:
            return f"{self.runtime} is not installed here: written for {self.runtime_version}, not checked against it"
        if (runtime.version or "").split("+")[0] != self.runtime_version:
            raise MegatuneError(
                f"{self.runtime} {runtime.version} is installed, and {self.name} writes the format of "
                f"{self.runtime_version}: export where that version serves"
            )
        found = list(differences(runtime, self.relies_on))
        if found:
            raise MegatuneError(
                f"the installed {self.runtime} {runtime.version} is not the released one: {'; '.join(found)}: "
                f"{self.name} cannot be checked against it"
            )
        return f"{self.runtime} {runtime.version} is installed: the format is its own"


@cache
def exporters() -> dict[str, Exporter]:
    """Every registered exporter by name."""
    found: dict[str, Exporter] = {}
    for point in entry_points(group="megatune.exporters"):
        exporter: Exporter = point.load()()
        if exporter.name in found:
            raise MegatuneError(f"two packages register the exporter {exporter.name!r}: uninstall one of them")
        found[exporter.name] = exporter
    return dict(sorted(found.items()))


def exporter(name: str) -> Exporter:
    """The exporter of that name.

    :raises MegatuneError: when there is none, with the names that there are.
    """
    try:
        return exporters()[name]
    except KeyError:
        raise MegatuneError(f"unknown exporter {name!r}; allowed: {', '.join(exporters())}") from None


def expressible() -> dict[str, Expresses]:
    """What each registered exporter can express, for those whose files hold more than a plan's decisions."""
    return {
        name: found.expresses for name, found in exporters().items() if type(found).expresses is not Exporter.expresses
    }


def write(files: Mapping[str, str | bytes], directory: Path) -> list[Path]:
    """Write all files or none, each whole, and return their paths.

    A directory that is not there yet appears with all of them at once, whatever ends the process. In one that is there
    everything is on the disk under another name before the first file gets its own, and what was there before comes
    back where that fails: a full disk leaves the directory as it was. Only a process that is killed between two of
    these names leaves files of two exports, and the same export again mends that.

    :param files: text, or bytes, by path below the directory; folders in between are made.
    :raises MegatuneError: for a path that leaves the directory, and when it cannot be made or written.
    """
    try:
        encoded = {
            _inside(directory, name): content if isinstance(content, bytes) else content.encode()
            for name, content in files.items()
        }
        if directory.exists():
            _write_into(encoded)
        else:
            _make(directory, encoded)
    except (OSError, RuntimeError) as error:  # the latter for a link that leads to itself
        raise MegatuneError(f"cannot write to {directory}: {getattr(error, 'strerror', None) or error}") from None
    return list(encoded)


def _make(directory: Path, files: Mapping[Path, bytes]) -> None:
    """The directory with its files: made beside its place, and moved there as a whole."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent) as beside:
        made = Path(beside) / "new"
        made.mkdir()
        _write_into({made / path.relative_to(directory): content for path, content in files.items()})
        # Not replace(): what somebody else put there meanwhile stays, unless it is an empty directory.
        made.rename(directory)


def _write_into(files: Mapping[Path, bytes]) -> None:
    staged: list[tuple[Path, Path]] = []
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.append((_stage(path, content), path))
        _replace(staged)
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)


def _inside(directory: Path, name: str) -> Path:
    """Where the file goes. A name may come from a plan that somebody else made."""
    path = directory / name
    # Resolved, so that a link below the directory leads nowhere else either.
    if (
        path == directory
        or "\0" in name
        or ".." in Path(name).parts
        or not path.resolve().is_relative_to(directory.resolve())
    ):
        raise MegatuneError(f"{name!r} is no file below {directory}: nothing was written")
    if path.is_dir():
        raise MegatuneError(f"cannot write {path}: it is a directory")
    return path


def _replace(staged: Sequence[tuple[Path, Path]]) -> None:
    """Give every staged file its name, or put all of them back."""
    done: list[tuple[Path, Path | None]] = []
    try:
        for temporary, path in staged:
            before = _stage(path, path.read_bytes()) if path.is_file() else None
            done.append((path, before))
            temporary.replace(path)
    except BaseException:  # also where somebody interrupts it: files of two exports do not go together
        for path, before in reversed(done):
            if before is not None:
                before.replace(path)
            elif path.is_file():
                path.unlink()
        raise
    for _, before in done:
        if before is not None:
            before.unlink()


def _stage(path: Path, content: bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
