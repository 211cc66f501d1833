from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from export_examples import example_exports
from export_examples import plans_by_exporter
from plan_examples import CUBLAS
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_plan
from plan_examples import mma
from plan_examples import simt

from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.space import Config
from megatune_planner import reader
from megatune_planner.exporters import base
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.base import exporters
from megatune_planner.exporters.base import write
from megatune_planner.exporters.vllm_low_latency_table import JSON_FILE
from megatune_planner.exporters.vllm_low_latency_table import unmappable
from megatune_planner.exporters.vllm_table_schema import SkinnyGemmConfig
from megatune_planner.exporters.vllm_table_schema import Table
from megatune_planner.exporters.vllm_table_schema import TableShape
from megatune_planner.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden"
VLLM = "vllm-low-latency-table"


def table_of(directory: Path, cases: list[Case]) -> Table:
    return Table.model_validate_json(exporter(VLLM).files(example_plan(directory, cases))[JSON_FILE])


def shape_of(directory: Path, cases: list[Case]) -> TableShape:
    (shape,) = table_of(directory, cases).shapes
    return shape


def at(tokens: int, n: int = 1536, k: int = 7168) -> Workload:
    return Workload.of("projection", {"n": n, "k": k}, tokens)


def test_exports_are_the_golden_files(tmp_path: Path) -> None:
    """They change on purpose only: see tests/golden/regenerate.py."""
    exports = example_exports(tmp_path)
    stored = {str(path.relative_to(GOLDEN)): path for name in exporters() for path in (GOLDEN / name).rglob("*.*")}
    assert sorted(stored) == sorted(exports)
    for name, path in stored.items():
        assert exports[name] == path.read_text(encoding="utf-8"), name


def test_an_export_depends_on_the_plan_alone(tmp_path: Path) -> None:
    for name, plan in plans_by_exporter(tmp_path).items():
        assert exporter(name).files(plan) == exporter(name).files(Plan.from_json(plan.to_json()))


def test_the_reader_is_exported_as_it_is(plan: Plan) -> None:
    files = exporter("json").files(plan)
    assert files["megatune_reader.py"] == Path(reader.__file__).read_text(encoding="utf-8")
    assert reader.load(files["plan.json"], target=TARGET.to_dict()).digest == plan.digest


def test_exporters_are_found_by_name() -> None:
    assert {"json", VLLM} <= set(exporters())
    with pytest.raises(MegatuneError, match="unknown exporter 'other'; allowed: flashinfer, json, "):
        exporter("other")


def test_each_exact_tokens_gets_the_best_that_can_be_named(tmp_path: Path) -> None:
    cases = []
    for tokens, times in {
        1: {CUBLAS: 10.0, simt(split_k=2): 5.0, simt(block=224, rows=3): 6.0, simt(block=64): 7.0},
        2: {CUBLAS: 10.0, mma(): 5.0},
        3: {CUBLAS: 10.0, simt(): 9.6},
        4: {CUBLAS: 10.0, simt(): 9.4},
        16: {CUBLAS: 10.0, simt(static_k=True): 5.0},
        32: {CUBLAS: 10.0, mma(): 5.0},
    }.items():
        cases += [Case(at(tokens), config, us) for config, us in times.items()]
    shape = shape_of(tmp_path, cases)
    assert {entry.tokens: entry.config for entry in shape.entries} == {
        1: SkinnyGemmConfig(num_rows=1, block_size=224, outputs_per_block=3, k_unroll=2, vector_width=8, static_k=None),
        4: SkinnyGemmConfig(num_rows=4, block_size=128, outputs_per_block=2, k_unroll=2, vector_width=8, static_k=None),
        16: SkinnyGemmConfig(
            num_rows=16, block_size=128, outputs_per_block=2, k_unroll=2, vector_width=8, static_k=7168
        ),
    }
    assert {line.tokens: line.reason for line in shape.cublas} == {
        3: "the best that the table can name saves 4.0%, less than 5%",
    }
    assert shape.unmeasured == tuple(t for t in range(1, 17) if t not in (1, 3, 4, 16))
    assert [(line.tokens, line.variant) for line in shape.not_mapped] == [(1, "simt"), (2, "mma")]


def test_an_entry_needs_intervals_apart(tmp_path: Path) -> None:
    cases = [
        Case(at(1), CUBLAS, 10.0, spread=0.05),
        Case(at(1), simt(), 9.2, spread=0.05),
        Case(at(2), CUBLAS, 10.0),
        Case(at(2), simt(), 5.0),
    ]
    shape = shape_of(tmp_path, cases)
    assert [entry.tokens for entry in shape.entries] == [2]
    assert "overlap" in shape.cublas[0].reason


@pytest.mark.parametrize(
    ("config", "tokens", "n", "k", "says"),
    [
        (simt(), 4, 1536, 7168, ""),
        (simt(block=224, rows=3), 16, 1536, 7168, ""),
        (simt(), 17, 1536, 7168, "ends at 16 tokens"),
        (mma(), 4, 1536, 7168, "no counterpart of variant mma"),
        (simt(split_k=2), 4, 1536, 7168, "cannot split K"),
        (simt(rows=5), 4, 1536, 7168, "N=1536 is not divisible by outputs_per_block=5"),
        (simt(block=256), 4, 1536, 7000, "K=7000 is not divisible by block_size x vector_width=2048"),
        (simt(block=48), 4, 1536, 7168, "block_size"),
        (simt(block=32), 4, 1536, 256, ""),
        (simt(block=32, static_k=True), 4, 1536, 256, "static_k=256 is less than 2 x block_size x vector_width=512"),
        (simt(block=32, static_k=True), 4, 1536, 512, ""),
        (Config.of("simt", {"block": 128}), 4, 1536, 7168, "does not say rows, k_unroll"),
        (Config.of("simt", simt().params | {"rows": True}), 4, 1536, 7168, "outputs_per_block"),
    ],
)
def test_what_vllm_refuses_is_not_mapped(config: Config, tokens: int, n: int, k: int, says: str) -> None:
    found = unmappable(config.variant, config.params, tokens, n, k)
    assert bool(found) == bool(says)
    assert says in "; ".join(found)
    workload = at(tokens, n, k)
    assert exporter(VLLM).expresses(workload, config) is not bool(found)


def test_other_operators_and_dtypes_are_not_expressed() -> None:
    table = exporter(VLLM)
    assert table.expresses(at(4), simt())
    assert not table.expresses(replace(at(4), operator="experts"), simt())
    assert not table.expresses(replace(at(4), dtype="fp8"), simt())


def test_shapes_beyond_the_table_are_skipped_with_a_reason(tmp_path: Path) -> None:
    def pair(workload: Workload) -> list[Case]:
        return [Case(workload, CUBLAS, 10.0), Case(workload, simt(), 5.0)]

    fp8 = replace(at(4), dtype="fp8")
    table = table_of(tmp_path, [*pair(at(4)), *pair(at(32, n=2304)), *pair(fp8)])
    assert [(shape.n, shape.k) for shape in table.shapes] == [(1536, 7168)]
    assert len(table.skipped) == 2
    (tmp_path / "none").mkdir()
    with pytest.raises(MegatuneError, match="no shape of the plan fits the table"):
        table_of(tmp_path / "none", pair(at(32)))


def _changed(plan: Plan, change: Callable[[dict[str, object]], None]) -> Plan:
    content = plan.content.model_dump()
    change(content)
    return Plan.of(type(plan.content).model_validate(content))


def test_a_plan_that_the_table_is_not_for_is_one_line(plan: Plan) -> None:
    other = replace(TARGET, hardware=replace(TARGET.hardware, arch="sm_80"))

    def elsewhere(content: dict[str, object]) -> None:
        content["target"] = {"digest": other.digest, **other.to_dict()}

    def renamed(content: dict[str, object]) -> None:
        content["operators"][0]["name"] = "experts"  # type: ignore[index]

    def unbased(content: dict[str, object]) -> None:
        content["operators"][0]["baselines"] = ("table",)  # type: ignore[index]

    for change, says in (
        (elsewhere, "no low-latency table for sm_80"),
        (renamed, "no operator 'projection'"),
        (unbased, "needs the baseline cublas"),
    ):
        with pytest.raises(MegatuneError, match=says):
            exporter(VLLM).files(_changed(plan, change))


def test_tables_of_other_gpus_have_other_names(plan: Plan) -> None:
    other = replace(TARGET, hardware=replace(TARGET.hardware, arch="sm_103a"))
    changed = _changed(plan, lambda content: content.update(target={"digest": other.digest, **other.to_dict()}))
    text = exporter(VLLM).files(changed)[JSON_FILE]
    assert json.loads(text)["runtime"]["table"] == "KIMI_K3_PROJECTIONS"


def test_a_table_that_is_not_legal_cannot_be_built(plan: Plan) -> None:
    value = json.loads(exporter(VLLM).files(plan)[JSON_FILE])
    for change, says in (
        (lambda v: v["shapes"][0]["entries"][0]["config"].update(outputs_per_block=5), "not divisible"),
        (lambda v: v["shapes"][0]["entries"][0]["config"].update(num_rows=7), "must be the tokens"),
        (lambda v: v["shapes"][0]["entries"][0]["config"].update(static_k=64), "is not K"),
        (lambda v: v["shapes"][0]["entries"].pop(), "must be stated once"),
        (lambda v: v["shapes"].append(v["shapes"][0]), "two shapes"),
        (lambda v: v.update(surprise=1), "surprise"),
    ):
        damaged = json.loads(json.dumps(value))
        change(damaged)
        with pytest.raises(ValueError, match=says):
            Table.model_validate_json(json.dumps(damaged))


def install(directory: Path, name: str, version: str, sources: dict[str, str]) -> None:
    """A distribution as pip would leave it, with these files."""
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in sources.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)


VLLM_SOURCES = {
    "vllm/models/kimi_k3/nvidia/low_latency_gemm.py": """
KIMI_K3_PROJECTIONS: dict = {}
KIMI_K3_PROJECTIONS_SM90, KIMI_K3_PROJECTIONS_SM100 = {}, {}
""",
    "vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py": """
class SkinnyGemmConfig:
    num_rows: int
    block_size: int
    outputs_per_block: int
    k_unroll: int
    vector_width: int
    static_k: int | None = None
""",
}


@pytest.mark.parametrize("released", ["0.33.0", "0.33.0+cu130"])
def test_the_installed_runtime_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, released: str) -> None:
    install(tmp_path, "vllm", released, VLLM_SOURCES)
    monkeypatch.syspath_prepend(tmp_path)
    assert exporter(VLLM).check_runtime() == f"vllm {released} is installed: the format is its own"
    assert exporter("json").check_runtime() == ""


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "vllm", "0.34.1", VLLM_SOURCES)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MegatuneError, match=r"vllm 0\.34\.1 is installed, and vllm-low-latency-table writes the format of"
    ):
        exporter(VLLM).check_runtime()


def test_a_runtime_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> Runtime:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(base, "installed", installed)
    assert exporter(VLLM).check_runtime() == "vllm is not installed here: written for 0.33.0, not checked against it"


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        (
            "low_latency_gemm.py",
            "KIMI_K3_PROJECTIONS_SM90 = {}",
            "low_latency_gemm.py has no KIMI_K3_PROJECTIONS_SM100",
        ),
        ("low_latency_gemm.py", "def broken(", "low_latency_gemm.py cannot be read"),
        ("low_latency_gemm.py", None, "low_latency_gemm.py cannot be read"),
    ],
)
def test_a_changed_build_of_the_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, text: str | None, says: str
) -> None:
    sources = {name: text if name.endswith(path) else each for name, each in VLLM_SOURCES.items()}
    install(tmp_path, "vllm", "0.33.0", {name: each for name, each in sources.items() if each is not None})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MegatuneError, match=f"vllm 0.33.0 is not the released one: .*{says}"):
        exporter(VLLM).check_runtime()


READS = """
def batch_table(spec):
    found = {}
    for item in spec.split(",") if spec else ():
        tokens, value = item.split(":")
        first, last = (int(each) for each in (tokens if "-" in tokens else f"{tokens}-{tokens}").split("-"))
        parts = [int(each) if each.lstrip("-").isdigit() else each for each in value.split(".")]
        for tokens in range(first, last + 1):
            found[tokens] = tuple(parts) if len(parts) > 1 else parts[0]
    return found
"""


def test_values_that_a_build_changed_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tables that vLLM ships stand for what a plan does not decide: another build may ship others."""
    package = "vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl"
    sources = {
        f"{package}/oproj/prepared.py": 'TWOSHOT = {8: "33-64:1", 16: "17-64:1"}\ndef twoshot_batches(tp): ...',
        f"{package}/moe/tail_runtime.py": 'TWOSHOT = {8: "", 16: "33-64:1"}\ndef twoshot_batches(tp): ...',
        f"{package}/common/policy.py": READS,
        "vllm/models/kimi_k3/nvidia/specialized_decode/runtime/prefetch.py": (
            "from ..cutedsl.common.policy import batch_table\n"
            'NEXT_ATTENTION = {8: "1:96.100,2-3:96,4-7:64,8:32", 16: "1-8:1024"}'
        ),
    }
    decode = exporter("vllm-specialized-decode")
    install(tmp_path / "released", "vllm", "0.33.0", sources)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "released")
        assert "the format is its own" in decode.check_runtime()
    tuned = sources | {f"{package}/oproj/prepared.py": sources[f"{package}/oproj/prepared.py"].replace("17-64", "9-64")}
    install(tmp_path / "tuned", "vllm", "0.33.0", tuned)
    monkeypatch.syspath_prepend(tmp_path / "tuned")
    with pytest.raises(MegatuneError, match=r"oproj/prepared\.py has another TWOSHOT"):
        decode.check_runtime()
    older = sources | {f"{package}/common/policy.py": READS.replace("last + 1", "last")}
    install(tmp_path / "older", "vllm", "0.33.0", older)
    monkeypatch.syspath_prepend(tmp_path / "older")
    with pytest.raises(MegatuneError, match=r"policy\.py has a batch_table that reads '1:1' as {}"):
        decode.check_runtime()


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "deep" / "out"
    assert write({"a": "one\n", "b": "two\n"}, out) == [out / "a", out / "b"]
    assert (out / "a").read_text() == "one\n"

    def full(descriptor: int) -> None:
        if (out / "a").exists() and len(list(out.iterdir())) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(base.os, "fsync", full)
    with pytest.raises(MegatuneError, match="No space left"):
        write({"a": "three\n", "b": "four\n"}, out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"a": "one\n", "b": "two\n"}


def test_a_directory_appears_with_all_of_its_files_whenever_the_process_is_killed(tmp_path: Path) -> None:
    """Killed before every call that changes a name: somebody else sees no directory, or all of it."""
    script = """
import os, signal, sys
from pathlib import Path
from megatune_planner.exporters.base import write

def counted(call, left):
    def before(*args, **kwargs):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return before

killed, calls = True, 0
while killed:
    if not os.fork():
        left = iter(range(calls))
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name), left))
        write({"a": "one", "deep/b": "two", "c": "three"}, Path(sys.argv[1], str(calls), "out"))
        os._exit(0)
    killed = os.wait()[1] != 0
    calls += 1
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    seen = []
    for each in sorted(tmp_path.iterdir(), key=lambda path: int(path.name)):
        out = each / "out"
        found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert found in (set(), {"a", "c", "deep/b"}), each
        assert out.exists() == bool(found)
        seen.append(bool(found))
    assert seen == sorted(seen)
    assert set(seen) == {False, True}
    assert list(out.parent.iterdir()) == [out]


def test_a_directory_that_is_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    stage = base._stage

    def meanwhile(path: Path, content: bytes) -> Path:
        out.mkdir(exist_ok=True)
        (out / "theirs").write_text("")
        return stage(path, content)

    monkeypatch.setattr(base, "_stage", meanwhile)
    with pytest.raises(MegatuneError, match=r"cannot write to .*: Directory not empty"):
        write({"a": ""}, out)
    assert sorted(tmp_path.rglob("*")) == [out, out / "theirs"]


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "a/../fine", "/outside", "link/outside", "a\0b", "", "."]
)
def test_a_path_that_leaves_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path)
    with pytest.raises(MegatuneError, match=r"is no file below .*: nothing was written"):
        write({"fine": "", name: ""}, out)
    assert sorted(tmp_path.rglob("*")) == [out, out / "link"]


def test_the_directory_itself_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for text in ("one", "two"):
        assert write({"a": text}, Path("../there")) == [Path("../there/a")]
        assert (tmp_path / "there" / "a").read_text() == text


def test_files_may_lie_in_folders(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write({"a/b/c": "one", "d": "two"}, out) == [out / "a" / "b" / "c", out / "d"]
    assert (out / "a" / "b" / "c").read_text() == "one"
    with pytest.raises(MegatuneError, match="it is a directory"):
        write({"d": "three", "a/b": ""}, out)
    assert (out / "d").read_text() == "two"


@pytest.mark.parametrize(
    ("fault", "raised"),
    [(OSError(errno.EIO, "Input/output error"), MegatuneError), (KeyboardInterrupt("Input/output error"), None)],
)
def test_what_was_there_comes_back_where_a_file_cannot_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, raised: type[BaseException] | None
) -> None:
    (tmp_path / "a").write_text("one\n")
    rename = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.name == "c":
            raise fault
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(raised or type(fault), match="Input/output error"):
        write({"a": "two\n", "b": b"new", "c": ""}, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "one\n"}


@pytest.mark.parametrize("to", [None, "out", "nowhere"])
def test_a_directory_that_is_a_file_or_a_link_to_nowhere_is_one_line(tmp_path: Path, to: str | None) -> None:
    if to is None:
        (tmp_path / "out").write_text("")
    else:
        (tmp_path / "out").symlink_to(to)
    with pytest.raises(MegatuneError, match="cannot write to"):
        write({"a": ""}, tmp_path / "out")
