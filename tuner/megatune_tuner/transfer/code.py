"""The part of Megatune that a bundle carries: what measures, and the operators that it measures.

Operators of other packages travel as the top-level package or module that they are in; what that imports besides has
to be on the GPU host.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.metadata import version
from pathlib import Path

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import operator

PACKAGES = ("megatune_kernels", "megatune_tuner")
DATABASE = ("megatune_db/__init__.py", "megatune_db/records.py")
"""Of the database a GPU host needs the words alone."""
SUFFIXES = (".py", ".json")


def carried_code(names: Iterable[str]) -> dict[str, bytes]:
    """The content of every file that a GPU host needs to measure these operators, by path.

    :raises MegatuneError: for an operator that is not there, or whose source cannot be read.
    """
    wanted = sorted({used for name in names for used in (name, *operator(name).uses)})
    points = {name: _entry_point(name) for name in wanted}
    roots = dict.fromkeys(value.partition(":")[0].partition(".")[0] for value in points.values())
    code: dict[str, bytes] = {}
    for root in dict.fromkeys([*PACKAGES, *roots]):
        code |= dict(_sources(root))
    database = dict(_sources("megatune_db"))
    code |= {name: database[name] for name in DATABASE}
    release = version("megatune")
    folder = f"megatune-{release}.dist-info"
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    return code | {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: megatune\nVersion: {release}\n".encode(),
        f"{folder}/entry_points.txt": f"[megatune.operators]\n{lines}".encode(),
    }


def _entry_point(name: str) -> str:
    found = type(operator(name))
    for point in entry_points(group="megatune.operators"):
        if point.load() is found:
            return str(point.value)
    raise MegatuneError(f"no package registers the operator {name!r}, so a bundle cannot carry it")


def _sources(root: str) -> Iterator[tuple[str, bytes]]:
    __import__(root)
    module = sys.modules[root]
    if not module.__file__:
        raise MegatuneError(f"cannot read the source of {root}, so a bundle cannot carry it")
    file = Path(module.__file__)
    if file.name != "__init__.py":
        yield file.name, file.read_bytes()
        return
    for each in sorted(file.parent.rglob("*")):
        if each.suffix in SUFFIXES and "__pycache__" not in each.parts:
            yield each.relative_to(file.parent.parent).as_posix(), each.read_bytes()
