"""Modules of another runtime, loaded alone: a made-up runtime that imports what is nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import Foreign
from megatune_kernels.foreign import sources_digest
from megatune_kernels.runtime_source import Runtime

HOST = """
from __future__ import annotations

import logging
import nowhere.deep as deep
import torch
from dataclasses import dataclass
from nowhere import Base, decorate
from engine.platforms import current
from ._kernel import KERNEL, double
from . import _kernel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Config:
    rows: int
    unroll: int = 1


@decorate
class Layer(Base, deep.Other):
    kind: torch.dtype

    @decorate(option=3)
    def run(self):
        return current.name, KERNEL, _kernel.double(4), torch.bfloat16


def lazily():
    from nowhere.later import thing
    return thing
"""
KERNEL = """
import math

KERNEL = "kernel"


def double(value):
    return int(math.copysign(2 * value, 1))
"""


def runtime(root: Path, host: str = HOST, kernel: str = KERNEL) -> Runtime:
    folder = root / "engine/kernels"
    folder.mkdir(parents=True)
    (folder / "host.py").write_text(host)
    (folder / "_kernel.py").write_text(kernel)
    return Runtime("engine", "1.2", root)


class Platform:
    name = "ours"


def test_a_module_is_loaded_with_nothing_around_it(tmp_path: Path) -> None:
    before = set(sys.modules)
    foreign = Foreign(runtime(tmp_path), "engine.kernels", given={"engine.platforms.current": Platform})
    host = foreign.module("engine.kernels.host")
    assert host.Config(rows=2).unroll == 1
    assert host.Layer().run is not None
    assert foreign.find("torch.bfloat16") is foreign.find("torch.bfloat16") is not foreign.find("torch.float16")
    assert repr(host.lazily()) == "<stand-in for nowhere.later.thing>"
    assert host.double(3) == 6
    assert not {name for name in set(sys.modules) - before if "engine" in name or "nowhere" in name or "torch" in name}
    assert not any(name.startswith("_megatune_foreign") for name in sys.modules)


def test_what_is_given_stands_for_what_is_imported(tmp_path: Path) -> None:
    foreign = Foreign(runtime(tmp_path), "engine.kernels", given={"engine.platforms.current": Platform})
    # "decorate(option=3)" is a stand-in that gives back what it is applied to.
    assert foreign.module("engine.kernels.host").Layer().run() == ("ours", "kernel", 8, foreign.find("torch.bfloat16"))


def test_real_packages_are_themselves_but_for_what_is_given(tmp_path: Path) -> None:
    text = "import numpy as np\nimport numpy.linalg as la\nA = np.float32(1.5)\nB = la.norm\nC = np.zeros\n"
    foreign = Foreign(runtime(tmp_path, text), "engine.kernels", given={"numpy.linalg.norm": "ours"}, real=("numpy",))
    host = foreign.module("engine.kernels.host")
    import numpy as np

    assert type(host.A) is np.float32
    assert host.C is np.zeros
    assert host.B == "ours"


def test_the_digest_is_of_what_was_read(tmp_path: Path) -> None:
    names = ("engine.kernels.host", "engine.kernels._kernel")
    one, same = runtime(tmp_path / "a"), runtime(tmp_path / "b")
    other = runtime(tmp_path / "c", kernel=f"{KERNEL}# more\n")
    assert sources_digest(one, names) == sources_digest(same, names) != sources_digest(other, names)
    with pytest.raises(Unknown, match=r"engine 1.2 at .*a has no engine/kernels/gone.py"):
        sources_digest(one, ("engine.kernels.gone",))


@pytest.mark.parametrize(
    "imports",
    [
        "from ._helper import width",
        "from . import _helper",
        "import engine.kernels._helper",
        "def later():\n    from engine.kernels._helper import width",
    ],
)
def test_the_digest_is_of_what_is_loaded_with_it(tmp_path: Path, imports: str) -> None:
    names = ("engine.kernels.host", "engine.kernels._kernel")
    found = []
    for width in (1, 1, 2):
        made = runtime(tmp_path / str(len(found)), kernel=f"{KERNEL}\n{imports}\n")
        (made.place / "engine/kernels/_helper.py").write_text(f"import torch\nfrom . import host\nwidth = {width}\n")
        found.append(sources_digest(made, names))
    assert found[0] == found[1] != found[2]


def test_annotations_are_what_the_module_says(tmp_path: Path) -> None:
    text = "def kernel(rows: int): ...\nlast = kernel.__annotations__\n"
    foreign = Foreign(runtime(tmp_path, text), "engine.kernels")
    assert foreign.module("engine.kernels.host").last == {"rows": int}
    later = Foreign(runtime(tmp_path / "later", f"from __future__ import annotations\n{text}"), "engine.kernels")
    assert later.module("engine.kernels.host").last == {"rows": "int"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import torch\nA = 1 + torch.x", r"engine/kernels/host.py of engine 1.2 at .* cannot be loaded: TypeError"),
        ("def broken(", "cannot be loaded: SyntaxError"),
        ("from ._kernel import GONE", "cannot be loaded: ImportError"),
    ],
)
def test_what_cannot_be_loaded_says_why(tmp_path: Path, text: str, says: str) -> None:
    foreign = Foreign(runtime(tmp_path, text), "engine.kernels")
    with pytest.raises(Unknown, match=says):
        foreign.module("engine.kernels.host")
    assert not any(name.startswith("_megatune_foreign") for name in sys.modules)


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="has no Gone, which Megatune needs"):
        Foreign(runtime(tmp_path), "engine.kernels").need("engine.kernels.host", "Gone")
