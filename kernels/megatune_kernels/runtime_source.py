"""Where a runtime's source is read: an installation, an unpacked tree or a wheel. Nothing of it is ever imported."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

from megatune_kernels.errors import MegatuneError


@dataclass(frozen=True)
class Runtime:
    """A runtime as some place has it."""

    name: str
    """Of the distribution, e.g. ``flashinfer-python``."""
    version: str | None
    """As its metadata say; None where there are none, as in a checkout."""
    place: Path
    """The folder that its package lies in, or a wheel."""

    def read(self, path: str) -> str | None:
        """Text of a file by its path from the place on; None where it cannot be read."""
        try:
            if self.place.is_dir():
                return (self.place / path).read_text(encoding="utf-8")
            with zipfile.ZipFile(self.place) as archive:
                return archive.read(path).decode()
        except (OSError, EOFError, KeyError, UnicodeDecodeError, RuntimeError, zipfile.BadZipFile, zlib.error):
            return None  # damaged, encrypted or compressed in some other way, too


def installed(name: str) -> Runtime:
    """The runtime that this Python has.

    :raises PackageNotFoundError: when it is not installed.
    """
    found = distribution(name)
    return Runtime(name, found.version, Path(str(found.locate_file(""))))


def runtimes_at(place: Path, packages: Sequence[tuple[str, str]]) -> list[Runtime]:
    """Those of some runtimes that a place has.

    :param place: a site-packages folder, an unpacked tree, a package's own folder, or a wheel.
    :param packages: of each runtime the distribution's name and the package that it consists of, e.g.
        ``("flashinfer-python", "flashinfer")``.
    :raises MegatuneError: when the place is none of these, has none of the runtimes, or is a wheel without a version.
    """
    if not place.exists():
        raise MegatuneError(f"there is nothing at {place}: name a site-packages folder, an unpacked tree or a wheel")
    if place.is_dir() and any(place.name == package and not (place / package).is_dir() for _, package in packages):
        place = place.parent
    names = _names_in(place)
    found = [
        Runtime(name, _version(place, name, names), place)
        for name, package in packages
        if any(each == package or each.startswith(f"{package}/") for each in names)
    ]
    if not found:
        known = ", ".join(f"{package} ({name})" for name, package in packages)
        raise MegatuneError(f"{place} has no package of a runtime that exports are for; known are {known}")
    for runtime in found:
        if runtime.version is None and place.is_file():
            raise MegatuneError(f"{place} does not say which version of {runtime.name} it is: download the wheel again")
    return found


def _names_in(place: Path) -> list[str]:
    if place.is_dir():
        return [path.name for path in place.iterdir()]
    try:
        with zipfile.ZipFile(place) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise MegatuneError(f"{place} is neither a folder nor a wheel: {error}") from None


def _version(place: Path, name: str, names: Sequence[str]) -> str | None:
    wanted = name.replace("-", "_").lower()
    for each in names:
        folder = each.split("/", 1)[0]
        if folder.endswith(".dist-info") and folder.split("-", 1)[0].lower() == wanted:
            text = Runtime(name, None, place).read(f"{folder}/METADATA")
            found = HeaderParser().parsestr(text or "").get("Version")
            return found if isinstance(found, str) else None
    return None
