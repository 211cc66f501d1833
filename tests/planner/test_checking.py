"""``megatune check``: names, fields, parameters and grammars, read from source that is never imported."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_kernels.errors import MegatuneError
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.runtime_source import runtimes_at
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Computes
from megatune_planner.exporters.installed import Fields
from megatune_planner.exporters.installed import Names
from megatune_planner.exporters.installed import Takes
from megatune_planner.exporters.installed import examine
from megatune_planner.exporters.pure import Impure
from megatune_planner.exporters.pure import compute
from megatune_planner.plan import Plan

PACKAGES = [("vllm", "vllm"), ("flashinfer-python", "flashinfer")]

SOURCE = """
import os as system
from here import there
CONSTANT = {1: "a", 2: (3, 4)}
NO_DICT = {[]: 1}
FIRST, SECOND = 1, 2
typed: int = 5
raise RuntimeError("this is never run")

if system:
    inside = 1
else:
    otherwise = 1
try:
    tried = 1
except ImportError:
    excepted = 1

def function(a, b, *, c):
    local = 1

class Values:
    x: int
    y: str = ""
    kept: ClassVar[int] = 0
    def method(self, value): ...
"""


def problems(tmp_path: Path, names: Names, source: str = SOURCE) -> list[str]:
    (tmp_path / "pkg").mkdir(exist_ok=True)
    (tmp_path / "pkg/module.py").write_text(source)
    return [each.problem for each in examine(Runtime("r", "1", tmp_path), names) if each.problem]


def test_names_of_modules_and_classes_are_found(tmp_path: Path) -> None:
    wanted = {
        "CONSTANT": {1: "a", 2: (3, 4)},
        "FIRST": 1,
        "SECOND": 2,
        "typed": 5,
        "Values": Fields(("x", "y")),
        "Values.y": "",
        "function": Takes(("a", "b", "c")),
        "Values.method": Takes(("self", "value")),
        **dict.fromkeys(("system", "there", "inside", "otherwise", "tried", "excepted", "x", "method"), ANY),
    }
    assert problems(tmp_path, {"pkg/module.py": wanted}) == []


@pytest.mark.parametrize(
    ("name", "wanted", "says"),
    [
        ("MISSING", ANY, "has no MISSING"),
        ("local", ANY, "has no local"),
        ("Values.z", ANY, "has no Values.z"),
        ("FIRST", 2, "has another FIRST"),
        ("CONSTANT", {1: "a"}, "has another CONSTANT"),
        ("there", 1, "has another there"),
        ("NO_DICT", {1: 2}, "has another NO_DICT"),
        ("function", Takes(("a", "b")), "has a function that takes a, b, c"),
        ("FIRST", Takes(()), "has a FIRST that is no function"),
        ("Values", Fields(("y", "x")), "has a Values with the fields x, y"),
        ("function", Fields(()), "has a function that is no class"),
        ("FIRST", Computes(()), "has a FIRST that is no function"),
        ("function", Computes((("", ""),)), "has a function that cannot be asked: it takes more than one argument"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, name: str, wanted: object, says: str) -> None:
    assert problems(tmp_path, {"pkg/module.py": {name: wanted}}) == [says]


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert problems(tmp_path, {"pkg/other.py": {"x": ANY}}) == ["cannot be read"]
    assert problems(tmp_path, {"pkg/module.py": {"x": ANY}}, "def broken(") == ["cannot be read"]
    (tmp_path / "pkg/bytes.py").write_bytes(b"x = '\xff'")
    assert problems(tmp_path, {"pkg/bytes.py": {"x": ANY}}) == ["cannot be read"]
    for deep in ("x = " + "-" * 30000 + "1", "x = " + "+".join(["1"] * 30000)):
        assert problems(tmp_path, {"pkg/module.py": {"x": ANY}}, deep) == ["cannot be read"]


@pytest.mark.parametrize("damage", ["data", "method", "encrypted"])
def test_a_damaged_file_of_a_wheel_is_said(tmp_path: Path, damage: str) -> None:
    wheel = tmp_path / "r-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/module.py", SOURCE)
    data = bytearray(wheel.read_bytes())
    local, central = 0, data.index(b"PK\x01\x02")
    if damage == "data":
        begin = local + 30 + len("pkg/module.py")
        data[begin : begin + 8] = b"\xff" * 8
    elif damage == "method":
        data[local + 8] = data[central + 10] = 99
    else:
        data[local + 6] = data[central + 8] = 1
    wheel.write_bytes(data)
    (found,) = examine(Runtime("r", "1", wheel), {"pkg/module.py": {"FIRST": 1}})
    assert found.problem == "cannot be read"


GRAMMAR = '''
def reads(text: str) -> "dict[int, Any]":
    """LO-HI=VALUE, by semicolons."""
    found = {}
    for item in text.split(";"):
        if not item:
            continue
        span, value = item.split("=")
        lo, _, hi = span.partition("-")
        found.update({each: int(value) for each in range(int(lo), int(hi or lo) + 1)})
    return found
'''


def test_a_grammar_is_asked_and_not_believed(tmp_path: Path) -> None:
    good = Computes((("1-2=5;2=6", {1: 5, 2: 6}), ("", {})))
    assert problems(tmp_path, {"pkg/module.py": {"reads": good}}, GRAMMAR) == []
    (said,) = problems(tmp_path, {"pkg/module.py": {"reads": good}}, GRAMMAR.replace("+ 1", ""))
    assert said == "has a reads that reads '1-2=5;2=6' as {1: 5}"
    (said,) = problems(tmp_path, {"pkg/module.py": {"reads": Computes((("1:2", {}),))}}, GRAMMAR)
    assert said == "has a reads that cannot be asked: it raises ValueError for '1:2'"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os\n    return os.getcwd()", "it has a Import"),
        ("return open(text).read()", "it uses read"),
        ("return open(text)", "it uses open"),
        ("return text.__class__", "it uses __class__"),
        ("return ().__class__.__base__.__subclasses__()", "it uses __"),
        ("return getattr(text, 'split')", "it uses getattr"),
        ("return eval(text)", "it uses eval"),
        ("return reads(text)", "it uses reads"),
        ("while True:\n        pass", "it has a While"),
        ("return text * 10**9", "it has a Mult"),
        ("return (lambda: 1)()", "it has a Lambda"),
        ("return '{0.__class__}'.format(text)", "it uses format"),
        ("global other\n    other = 1", "it has a Global"),
        ("return 1 // 0", "it has a FloorDiv"),
    ],
)
def test_only_what_handles_texts_is_run(body: str, says: str) -> None:
    function = ast.parse(f"def reads(text):\n    {body}\n").body[0]
    assert isinstance(function, ast.FunctionDef)
    with pytest.raises(Impure, match=says):
        compute(function, "")


def test_a_decorator_is_not_run() -> None:
    function = ast.parse("@cache\ndef reads(text):\n    return 1\n").body[0]
    assert isinstance(function, ast.FunctionDef)
    with pytest.raises(Impure, match="it is decorated"):
        compute(function, "")


def test_samples_cover_the_grammar() -> None:
    values = {type(value) for text in batch_table.SAMPLES for value in batch_table.parse(text).values()}
    assert values == {int, tuple, str}


def wheel_of(path: Path, sources: dict[str, str], version: str | None = "0.40.0", name: str = "vllm") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in sources.items():
            archive.writestr(file, text)
        if version is not None:
            archive.writestr(
                f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n\nVersion: 9\n"
            )
    return path


def test_a_runtime_is_found_in_every_kind_of_place(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm/x.py").write_text("X = 1\n")
    (found,) = runtimes_at(tree, PACKAGES)
    assert (found.name, found.version, found.read("vllm/x.py")) == ("vllm", None, "X = 1\n")
    assert runtimes_at(tree / "vllm", PACKAGES) == [found]
    # A wheel that was unpacked into a folder of the package's name.
    (tmp_path / "vllm/vllm").mkdir(parents=True)
    assert runtimes_at(tmp_path / "vllm", PACKAGES)[0].place == tmp_path / "vllm"
    (tree / "vllm-0.40.0+cu130.dist-info").mkdir()
    (tree / "vllm-0.40.0+cu130.dist-info/METADATA").write_text("Name: vllm\nVersion: 0.40.0+cu130\n")
    assert runtimes_at(tree, PACKAGES)[0].version == "0.40.0+cu130"
    (found,) = runtimes_at(wheel_of(tmp_path / "vllm.whl", {"vllm/x.py": "X = 2\n"}), PACKAGES)
    assert (found.version, found.read("vllm/x.py"), found.read("vllm/y.py")) == ("0.40.0", "X = 2\n", None)
    both = wheel_of(tmp_path / "both.whl", {"flashinfer/x.py": "", "vllm/x.py": ""}, name="vllm")
    with pytest.raises(MegatuneError, match="does not say which version of flashinfer-python it is"):
        runtimes_at(both, PACKAGES)


def test_a_place_without_a_runtime_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "text.whl").write_text("no wheel")
    for place, says in (
        (tmp_path / "nowhere", "there is nothing at"),
        (tmp_path / "other", "has no package of a runtime that exports are for; known are vllm"),
        (tmp_path / "text.whl", "is neither a folder nor a wheel"),
        (wheel_of(tmp_path / "old.whl", {"vllm/x.py": ""}, version=None), "does not say which version of vllm it is"),
        (wheel_of(tmp_path / "torch.whl", {"torch/x.py": ""}), "has no package of a runtime"),
    ):
        with pytest.raises(MegatuneError, match=says):
            runtimes_at(place, PACKAGES)


TABLE = "vllm/models/kimi_k3/nvidia/low_latency_gemm.py"
SKINNY = "vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py"
SOURCES = {
    TABLE: "KIMI_K3_PROJECTIONS = KIMI_K3_PROJECTIONS_SM90 = KIMI_K3_PROJECTIONS_SM100 = {}\n",
    SKINNY: "class SkinnyGemmConfig:\n"
    + "".join(
        f"    {name}: int\n"
        for name in ("num_rows", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")
    ),
}


@pytest.fixture
def plan_file(plan: Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    return path


def test_the_answer_for_a_version_that_nobody_has_seen(plan_file: Path, tmp_path: Path) -> None:
    def run(sources: dict[str, str], *options: str) -> tuple[int, str]:
        place = wheel_of(tmp_path / "vllm-0.40.0-py3-none-any.whl", sources)
        arguments = ["check", str(plan_file), "--against", str(place), "--to", "vllm-low-latency-table", *options]
        result = CliRunner().invoke(app, arguments)
        return result.exit_code, result.output

    code, said = run(SOURCES)
    assert code == 0
    assert "vllm 0.40.0" in said
    assert "all there" in said
    assert "written for 0.33.0" in said
    assert "What the plan asks of vllm, in its words" in said
    assert "  lora_config is None: the plan was not measured with lora" in said
    code, said = run(SOURCES | {SKINNY: SOURCES[SKINNY].replace("k_unroll", "unroll")})
    assert code == 3
    assert f"vllm-low-latency-table: {SKINNY} has a SkinnyGemmConfig with the fields num_rows, block_size," in said
    code, said = run({SKINNY: SOURCES[SKINNY], "vllm/x.py": ""}, "--json")
    assert code == 3
    found = json.loads(said)
    assert (found["holds"], found["exports"][0]["version"]) == (False, "0.40.0")
    assert {"file": TABLE, "name": "", "problem": "cannot be read"} in found["exports"][0]["names"]
    (asked,) = found["asks"]
    assert (asked["runtime"], asked["version"], asked["problems"]) == ("vllm", "0.40.0", [])
    assert {each["setting"] for each in asked["refuses"]} > {"lora_config", "model_config.dtype"}


def test_bad_input_of_the_command(plan_file: Path, tmp_path: Path) -> None:
    place = wheel_of(tmp_path / "vllm-0.40.0-py3-none-any.whl", SOURCES)
    for arguments, says in (
        ([str(plan_file), "--against", str(tmp_path / "nowhere")], "there is nothing at"),
        ([str(plan_file), "--against", str(place), "--to", "nothing"], "unknown exporter 'nothing'"),
        ([str(plan_file), "--against", str(place), "--to", "json"], "none of these exports is for a runtime"),
        (
            [str(plan_file), "--against", str(place), "--to", "vllm-allreduce"],
            "no export for vllm can express the plan",
        ),
        ([str(tmp_path / "none.json"), "--against", str(place)], "cannot read the plan"),
    ):
        result = CliRunner().invoke(app, ["check", *arguments])
        assert (result.exit_code, len(result.stderr.strip().splitlines())) == (2, 1)
        assert says in result.stderr
