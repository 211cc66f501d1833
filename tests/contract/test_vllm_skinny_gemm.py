"""The operator ``vllm-skinny-gemm`` over the kernel of the released vLLM, read from its wheel and not installed.

What vLLM's code says is compared with what Megatune says of it where there is no vLLM; its kernel is compiled as it is
and with changes that an adapter has to notice.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_recording import recorded
from plan_examples import BASELINES
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import example_plan

from megatune_dashboard.plans import plan_of
from megatune_dashboard.vllm_benchmark import TABLE_CELLS
from megatune_dashboard.vllm_benchmark import TP16_SHAPES
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels import artifact
from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import revision_of
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import Unknown
from megatune_kernels.models import Parallel
from megatune_kernels.models import model
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture
from megatune_kernels.vllm_skinny_gemm import modules
from megatune_kernels.vllm_skinny_gemm import table
from megatune_kernels.vllm_skinny_gemm.space import skinny_space
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.checking import check
from megatune_planner.exporters.vllm_low_latency_table import OVERLAPPED
from megatune_planner.plan import Plan
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.compiling import Built
from megatune_tuner.execution import run_file
from megatune_tuner.measuring import Meter
from megatune_tuner.recordings import read_recording
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.runners.gpu import GpuRunner
from megatune_tuner.workers.gpu_messages import Job
from megatune_tuner.workers.gpu_messages import Outcome
from tests.contract.runtime_wheels import unpack
from tests.contract.runtime_wheels import wheel
from tests.contract.test_vllm_plugin import NEEDED
from tests.contract.test_vllm_plugin import TOKENS
from tests.contract.test_vllm_plugin import installed
from tests.contract.test_vllm_plugin import serve

SKINNY_GEMM = operator("vllm-skinny-gemm")
H200 = architecture("sm_90a")
CAMPAIGN = Path(__file__).parents[2] / "tuner/megatune_tuner/data/campaigns/vllm-skinny-h200.toml"
HOST = "vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py"
KERNEL = "vllm/model_executor/kernels/linear/cute_dsl/_skinny_gemm.py"
TABLE = "vllm/models/kimi_k3/nvidia/low_latency_gemm.py"
RUN = "self._compiled[cache_key](a, b, residual_arg, output, self._stream())"
SHIPPED = Config.of("shipped", {})
CUBLAS = Config.of("cublas", {})
Build = Callable[..., Path]


def skinny(block: int = 128, outputs: int = 2, unroll: int = 2, vector: int = 8, *, static_k: bool = False) -> Config:
    return Config.of(
        "skinny",
        {
            "block_size": block,
            "outputs_per_block": outputs,
            "k_unroll": unroll,
            "vector_width": vector,
            "static_k": static_k,
        },
    )


def cell(n: int, k: int, tokens: int) -> Workload:
    return SKINNY_GEMM.workload({"n": n, "k": k}, tokens)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(wheel("vllm"), tmp_path_factory.mktemp("vllm"), NEEDED)


@pytest.fixture
def vllm(released: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The released vLLM is the one that is tuned."""
    monkeypatch.setenv(modules.ENVIRONMENT, str(released))
    return released


@pytest.fixture
def build(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """A build of vLLM whose kernel's files have some texts replaced; it is the one that is tuned from then on."""
    numbers = itertools.count()

    def changed(*changes: tuple[str, str, str]) -> Path:
        root = tmp_path / f"build{next(numbers)}"
        shutil.copytree(released, root)
        for file, old, new in changes:
            text = (root / file).read_text()
            assert old in text, (file, old)
            (root / file).write_text(text.replace(old, new))
        monkeypatch.setenv(modules.ENVIRONMENT, str(root))
        return root

    return changed


def test_legality_is_vllms_own(vllm: Path) -> None:
    """Where there is no vLLM the space is what 0.33.0 would say, so that recordings are replayed alike."""
    runtime = modules.vllm_here()
    assert runtime is not None
    assert runtime.version == "0.33.0"
    for n, k, tokens in itertools.product((768, 2113, 6288), (128, 384, 1536, 2112, 4224, 7168), (1, 5, 16)):
        workload = cell(n, k, tokens)
        ours, theirs = skinny_space(workload, H200, None), skinny_space(workload, H200, runtime)
        assert set(ours.configs) == set(theirs.configs), workload


def test_vllm_starts_with_its_rule_of_thumb(vllm: Path) -> None:
    for n, k, tokens in ((2112, 7168, 1), (3584, 7168, 1), (7168, 4224, 1), (1152, 1536, 4), (6288, 7168, 16)):
        space = SKINNY_GEMM.space(cell(n, k, tokens), H200)
        (start,) = space.defaults()
        assert start in space
    assert SKINNY_GEMM.space(cell(2112, 7168, 1), H200).defaults() == (skinny(224, 3, 2),)


def test_the_table_is_vllms_own(vllm: Path) -> None:
    runtime = modules.vllm_needed()
    found = table.shapes(runtime, H200)
    configs = {(n, k, t): c for (n, k), row in found.items() for t, c in row.items() if isinstance(c, Config)}
    assert (len(found), len(configs)) == (18, TABLE_CELLS)
    assert configs[2304, 1536, 1] == skinny(96, 4, 2)
    assert configs[7168, 4224, 2] == skinny(32, 4, 2, 4)
    assert found[1536, 7168][7] == "dsv3_fused_a"
    assert table.served(runtime, H200, 768, 7168, 1) is None
    # Others serve other GPUs; with K compiled in one is, too.
    assert len(table.shapes(runtime, architecture("sm_100a"))) != 18
    assert table.served(runtime, architecture("sm_103a"), 7168, 14336, 1) == skinny(256, 2, 1, 4, static_k=True)


def test_the_shipped_campaign_has_the_tables_cells_and_what_16_ranks_lack(vllm: Path) -> None:
    found = table.shapes(modules.vllm_needed(), H200)
    cells = {cell(n, k, t) for (n, k), row in found.items() for t, c in row.items() if isinstance(c, Config)}
    listed = set(load_campaign(CAMPAIGN).workloads())
    assert cells <= listed
    rest = {(w["n"], w["k"]) for w in listed - cells}
    of_16 = {(w["n"], w["k"]) for w in SKINNY_GEMM.workloads(model("Kimi-K3"), Parallel(16), [1])}
    assert rest == {(3216, 7168), (768, 7168), (1152, 1536), (768, 128), (7168, 384), (4224, 7168)} <= of_16
    assert not rest & set(found)


def test_what_runs_in_the_tables_name(vllm: Path) -> None:
    assert SKINNY_GEMM.stands_for(cell(2304, 1536, 1), SHIPPED, H200) == skinny(96, 4, 2)
    # Another kernel, or cuBLAS: nothing that is built here.
    for workload in (cell(1536, 7168, 7), cell(768, 7168, 1)):
        assert SKINNY_GEMM.stands_for(workload, SHIPPED, H200) == SHIPPED
        assert SKINNY_GEMM.parts(workload, SHIPPED) == ()
    assert SKINNY_GEMM.stands_for(cell(2304, 1536, 1), skinny(), H200) == skinny()


def test_a_launch_is_what_vllm_does(vllm: Path) -> None:
    launch = SKINNY_GEMM.launch(cell(2113, 7168, 3), skinny(64, 1, 2))
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2113, 1, 1), (64, 1, 1), 3 * 1 * 2 * 4)
    assert launch.programmatic
    x, w, residual, y, k, *atoms = launch.parameters
    assert [field.value for field in x.fields] == [0, 7168, 7168]
    assert [field.value for field in w.fields] == [1, 2113, 7168, 7168]
    assert [field.value for field in y.fields] == [2, 2113, 2113]
    assert residual == y
    assert [field.value for field in k.fields] == [7168]
    assert [atom.size for atom in atoms] == [8, 8, 8]
    with pytest.raises(MegatuneError, match="N must be divisible by outputs_per_block"):
        SKINNY_GEMM.launch(cell(2113, 7168, 3), skinny(64, 2, 2))


def test_vllm_is_never_imported(vllm: Path) -> None:
    code = (
        "import sys\n"
        "from megatune_kernels.operator import operator\n"
        "from megatune_kernels.space import Config\n"
        "from megatune_kernels.target import architecture\n"
        "tuned = operator('vllm-skinny-gemm')\n"
        "workload = tuned.workload({'n': 2304, 'k': 1536}, 1)\n"
        "shipped = tuned.stands_for(workload, Config.of('shipped', {}), architecture('sm_90a'))\n"
        "assert shipped in tuned.space(workload, architecture('sm_90a'))\n"
        "tuned.launch(workload, shipped)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(loaded & {'vllm', 'torch', 'cutlass', 'quack', 'cuda'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""


class TestCompiled:
    @pytest.fixture(autouse=True)
    def dsl(self) -> None:
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

    def test_configs_compile_without_a_gpu(self, vllm: Path) -> None:
        for workload, config in (
            (cell(2304, 1536, 2), skinny(96, 4, 1)),
            (cell(768, 128, 8), skinny(32, 1, 1, 4)),
            (cell(1152, 1536, 1), skinny(64, 2, 1, static_k=True)),
        ):
            built = SKINNY_GEMM.compile(workload, config, H200)
            assert built.entry.encode() in built.cubin
            assert 0 < built.registers <= 255
            assert built.arch == "sm_90a"

    @pytest.mark.parametrize("arch", sorted(set(ARCHITECTURES) - {"sm_90a"}))
    def test_other_architectures(self, vllm: Path, arch: str) -> None:
        assert SKINNY_GEMM.compile(cell(768, 128, 1), skinny(32, 2, 1, 4), architecture(arch)).arch == arch

    def test_a_wheel_will_do(self, tmp_path: Path, released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "vllm-0.33.0-cp38-abi3-linux.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(released.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(released))
        monkeypatch.setenv(modules.ENVIRONMENT, str(path))
        workload, config = cell(768, 128, 1), skinny(32, 2, 1, 4)
        found = SKINNY_GEMM.compile(workload, config, H200)
        monkeypatch.setenv(modules.ENVIRONMENT, str(released))
        assert found.key == artifact_key(SKINNY_GEMM, workload, config, H200)

    def test_a_kernel_with_other_parameters_is_found_before_it_is_launched(self, build: Build) -> None:
        """What vLLM's host hands over is as before, and the kernel takes it in 8 bytes."""
        build((KERNEL, "k_extent: cutlass.Int32", "k_extent: cutlass.Int64"))
        says = "parameter 4 of the kernel is 8 bytes at 96, and its adapter knows 4 bytes at 96: nothing is launched"
        with pytest.raises(Unknown, match=says):
            SKINNY_GEMM.compile(cell(2304, 1536, 2), skinny(96, 4, 1), H200)

    def test_a_parameter_that_vllm_adds_is_followed(self, build: Build) -> None:
        build(
            (KERNEL, "            k,\n            copy_a,", "            k,\n            n,\n            copy_a,"),
            (KERNEL, "k_extent: cutlass.Int32,", "k_extent: cutlass.Int32, n_extent: cutlass.Int32,"),
        )
        workload, config = cell(2304, 1536, 2), skinny(96, 4, 1)
        assert SKINNY_GEMM.compile(workload, config, H200).entry
        assert [parameter.size for parameter in SKINNY_GEMM.launch(workload, config).parameters][4:6] == [4, 4]

    def test_an_artifact_with_other_parameters_is_never_loaded(self, build: Build, released: Path) -> None:
        """The worker looks again: at the code that it is about to launch."""
        pytest.importorskip("cuda.core", reason="cuda-core is not installed")
        from megatune_tuner.workers.gpu_launch import load

        workload, config = cell(2304, 1536, 2), skinny(96, 4, 1)
        build()
        built = SKINNY_GEMM.compile(workload, config, H200)
        launch = SKINNY_GEMM.launch(workload, config)
        other = replace(launch, parameters=launch.parameters[:-1])
        with pytest.raises(Unknown, match="takes 8 parameters, and its adapter knows 7"):
            load(built, other, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            [(HOST, "    num_rows: int\n", "    num_rows: int\n    swizzle: int\n")],
            "SkinnyGemmConfig of vllm 0.33.0 at .* has swizzle without a default, which Megatune does not know",
        ),
        ([(HOST, "k_unroll", "unroll")], "SkinnyGemmConfig of vllm 0.33.0 at .* lacks k_unroll"),
        ([(KERNEL, "class CuteSkinnyGemm", "class CuteOther")], "has no CuteSkinnyGemm"),
        ([(KERNEL, "min_blocks_per_mp=1", "cooperative=True")], "is launched with cooperative"),
        (
            [(KERNEL, "            k,\n            copy_a,", "            k,\n            2.5,\n            copy_a,")],
            "takes 2.5",
        ),
        (
            [(HOST, "        return output\n", f"        {RUN}\n        return output\n")],
            "launches 2 kernels for one config",
        ),
        ([(HOST, "import torch\n", "import torch\nraise OSError('no GPU')\n")], "cannot be loaded: OSError: no GPU"),
    ],
)
def test_a_kernel_that_nobody_knows(build: Build, changes: list[tuple[str, str, str]], says: str) -> None:
    build(*changes)
    with pytest.raises(Unknown, match=says) as raised:
        SKINNY_GEMM.space(cell(2304, 1536, 2), H200)
    assert "\n" not in str(raised.value)


def test_a_new_field_with_a_default_keeps_it(build: Build) -> None:
    build((HOST, "    static_k: int | None = None\n", "    static_k: int | None = None\n    swizzle: int = 3\n"))
    assert skinny() in SKINNY_GEMM.space(cell(2304, 7168, 2), H200)


def test_another_version_says_otherwise_what_is_legal(build: Build) -> None:
    build((HOST, "if a.shape[1] % (config.block_size * config.vector_width) != 0:", "if config.block_size != 96:"))
    space = SKINNY_GEMM.space(cell(2304, 1536, 2), H200)
    assert {config.params["block_size"] for config in space.configs} == {96}


def test_places_without_the_kernel(tmp_path: Path, released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = cell(2304, 1536, 2)
    lacking = tmp_path / "vllm-0.9.0-py3-none-any.whl"
    with zipfile.ZipFile(lacking, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm-0.9.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.0\n")
    (tmp_path / "empty").mkdir()
    for place, says in (
        (tmp_path / "gone", "MEGATUNE_VLLM: there is nothing at .*gone"),
        (tmp_path / "empty", "MEGATUNE_VLLM: .*empty has no package of a runtime"),
        (lacking, f"vllm 0.9.0 at .*whl has no {HOST}: name one that has the kernel in MEGATUNE_VLLM"),
    ):
        monkeypatch.setenv(modules.ENVIRONMENT, str(place))
        with pytest.raises(MegatuneError, match=says) as raised:
            SKINNY_GEMM.space(workload, H200)
        assert "\n" not in str(raised.value)


def test_nothing_is_built_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(modules.ENVIRONMENT, raising=False)
    if modules.vllm_here() is not None:
        pytest.skip("vLLM is installed here")
    workload = cell(2304, 1536, 2)
    assert skinny() not in SKINNY_GEMM.space(workload, H200)
    assert skinny(96) in SKINNY_GEMM.space(workload, H200)
    with pytest.raises(MegatuneError, match="pip install vllm, or name an unpacked wheel in MEGATUNE_VLLM"):
        artifact_key(SKINNY_GEMM, workload, skinny(96), H200)


def test_keys_cover_what_is_compiled(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "compiler", lambda: {"nvidia-cutlass-dsl": "4.8.1"})

    def key(n: int = 2304, k: int = 1536, tokens: int = 2, **how: bool) -> str:
        return artifact_key(SKINNY_GEMM, cell(n, k, tokens), skinny(96, 4, 1, **how), H200)

    build()
    first, revision = key(), revision_of(SKINNY_GEMM)
    # N and K are told to the kernel, unless K is compiled in.
    assert key(n=1152) == key(k=768) == first
    assert len({first, key(tokens=3), key(static_k=True), key(k=3072, static_k=True)}) == 4
    build()
    assert (key(), revision_of(SKINNY_GEMM)) == (first, revision)
    seen = {first}
    for file in (KERNEL, HOST, TABLE):
        build((file, "from __future__ import annotations\n", "from __future__ import annotations\n\nMORE = 1\n"))
        assert key() not in seen
        assert revision_of(SKINNY_GEMM) != revision
        seen.add(key())


def example_of_the_kernel(directory: Path) -> Plan:
    """At 2304x1536 a config beats the table at 1 token and ties with it at 2; at 768x7168, which the table lacks, it
    beats cuBLAS at 4 tokens."""
    cases = []
    for workload, times in (
        (cell(2304, 1536, 1), {CUBLAS: 5.4, SHIPPED: 3.6, skinny(96, 2): 3.2, skinny(96, 4): 3.61}),
        (cell(2304, 1536, 2), {CUBLAS: 5.4, SHIPPED: 3.7, skinny(96, 2): 3.69}),
        (cell(768, 7168, 4), {CUBLAS: 8.0, SHIPPED: 8.0, skinny(32, 1, 1, static_k=True): 5.0}),
        (cell(768, 7168, 5), {CUBLAS: 8.0, SHIPPED: 8.0, skinny(32, 1, 1, static_k=True): 7.9}),
        # The table names a kernel that was not measured.
        (cell(1536, 7168, 8), {CUBLAS: 9.9, skinny(128, 2): 5.0}),
    ):
        cases += [Case(workload, config, us) for config, us in times.items()]
        cases += [Case(workload, config, us, Stage.FINAL, f"finals {workload}") for config, us in times.items()]
    return example_plan(directory, cases)


def test_plans_overlay_vllms_table(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BASELINES, SKINNY_GEMM.name, SKINNY_GEMM.baselines)
    plan = example_of_the_kernel(tmp_path)
    files = exporter("vllm-low-latency-table").files(plan)
    shapes = {(each["n"], each["k"]): each for each in json.loads(files["vllm_low_latency_table.json"])["shapes"]}
    known = shapes[2304, 1536]
    assert [entry["config"] for entry in known["entries"]] == [
        {
            "num_rows": 1,
            "block_size": 96,
            "outputs_per_block": 2,
            "k_unroll": 2,
            "vector_width": 8,
            "static_k": None,
        }
    ]
    assert known["entries"][0]["measured"]["shipped_latency"]["median_us"] == 3.6
    assert [each["tokens"] for each in known["kept"]] == [2]
    new = shapes[768, 7168]
    assert [(entry["tokens"], entry["config"]["static_k"]) for entry in new["entries"]] == [(4, 7168)]
    assert [each["tokens"] for each in new["cublas"]] == [5]
    assert "| 2 | as it is: nothing is faster" in files["vllm_low_latency_table.md"]

    answer = serve(released, installed(plan, tmp_path / "site"), plan)
    before, after = (answer[name]["KIMI_K3_PROJECTIONS_SM90"] for name in ("projections_before", "projections"))
    assert before["2304x1536"]["1"] == [1, 96, 4, 2, 8, None]
    assert after["2304x1536"] == {**before["2304x1536"], "1": [1, 96, 2, 2, 8, None]}
    assert "768x7168" not in before
    assert after["768x7168"] == dict.fromkeys(TOKENS) | {"4": [4, 32, 1, 1, 8, 7168]}
    # What vLLM runs there was not measured: it stays.
    assert after["1536x7168"] == before["1536x7168"]
    assert answer["installed"]["2304x1536"] == after["2304x1536"]


def test_the_shipped_recording_overlays_vllms_table(vllm: Path, tmp_path: Path) -> None:
    """Where a config is faster beyond doubt it is in the table, whatever else the table has stays, and the shapes of 16
    ranks that it lacks are there."""
    recording = read_recording(shipped_recordings()[CAMPAIGN.stem])
    plan = plan_of(recording, SKINNY_GEMM.name)
    document = json.loads(exporter("vllm-low-latency-table").files(plan)["vllm_low_latency_table.json"])
    answer = serve(vllm, installed(plan, tmp_path / "site"), plan)
    before, after = (answer[name]["KIMI_K3_PROJECTIONS_SM90"] for name in ("projections_before", "projections"))
    named = {
        (shape["n"], shape["k"]): {str(entry["tokens"]): entry for entry in shape["entries"]}
        for shape in document["shapes"]
    }
    fields = ("num_rows", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")
    changed = 0
    for (n, k), entries in named.items():
        place = f"{n}x{k}"
        # What vLLM runs past its table is left out of the overlay, as the document says.
        wanted = {} if (n, k) in OVERLAPPED else {t: [e["config"][f] for f in fields] for t, e in entries.items()}
        if place in before or wanted:
            assert after[place] == before.get(place, dict.fromkeys(TOKENS)) | wanted, place
        changed += len(wanted)
        for tokens, entry in entries.items():
            measured = entry["measured"]
            assert measured["gain"] >= document["min_gain"]
            assert measured["latency"]["high_us"] < measured["shipped_latency"]["low_us"], (place, tokens)
            finals = recording.finals(cell(n, k, int(tokens)))[0]
            tuned = {config: one.median_us for config, one in finals.items() if config.variant == "skinny"}
            assert tuned[Config.of("skinny", measured["params"])] == min(us for us in tuned.values() if us is not None)
    assert changed > 47
    assert all(after[place] == row for place, row in before.items() if tuple(map(int, place.split("x"))) not in named)
    lacked = {place for place in after if place not in before}
    assert lacked == {f"{n}x{k}" for n, k in TP16_SHAPES}
    assert "dsv3_fused_a" in {row[tokens] for row in after.values() for tokens in row if isinstance(row[tokens], str)}


def test_check_knows_what_the_plan_needs(
    released: Path, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BASELINES, SKINNY_GEMM.name, SKINNY_GEMM.baselines)
    plan = example_of_the_kernel(tmp_path)
    table_of_vllm = [exporter("vllm-low-latency-table")]
    assert check(plan, released, table_of_vllm).holds
    other = build(
        (KERNEL, "        use_pdl: bool = False,\n", "        use_pdl: bool = False,\n        depth: int = 2,\n")
    )
    (checked,) = check(plan, other, table_of_vllm).checked
    (problem,) = checked.problems
    assert problem.path == KERNEL
    assert "depth" in problem.problem
    needed = exporter("vllm-plugin").needs(plan)
    assert KERNEL in needed


def test_adapters_are_measured_where_they_are_named() -> None:
    text = 'name="x"\ntokens=[1]\n[model]\nname="Kimi-K3"\ntensor_parallel=16\n'
    assert "vllm-skinny-gemm" not in {workload.operator for workload in parse_campaign(text).workloads()}
    named = parse_campaign(f'operators=["vllm-skinny-gemm"]\n{text}').workloads()
    assert {workload.operator for workload in named} == {"vllm-skinny-gemm"}


class Builds:
    """Stands for the pool of compilers: every config is built at once."""

    processes = 1

    def __init__(self) -> None:
        self.asked: list[Config] = []

    def submit(self, tuned: Operator, workload: Workload, config: Config) -> Future[Built]:
        self.asked.append(config)
        done: Future[Built] = Future()
        done.set_result(Built(Artifact("key", "sm_90a", "entry", b"", 0, 0), Status.OK, "", 0.0))
        return done


class Diary(GpuRunner):
    """Stands for the runner of a GPU: it keeps what its process would be told to do."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._target = TARGET
        self._order = random.Random(0)

    def _search(self, job: Job) -> Outcome:
        self.jobs.append(job)
        return Outcome(Status.OK, samples_us=(1.0,) * 7, throttled=(False,) * 7, launches=1)


def test_the_tables_config_is_launched_in_its_name(vllm: Path) -> None:
    runner, builds = Diary(), Builds()
    meter = Meter(runner, Regime(), builds)
    for workload, runs in (
        (cell(2304, 1536, 1), skinny(96, 4)),
        (cell(768, 7168, 1), SHIPPED),
    ):
        found = meter.measure(meter.job(workload, SHIPPED))
        assert found.config == SHIPPED.digest
        job = runner.jobs.pop()
        assert job.config == runs
        built = runs is not SHIPPED
        assert (job.artifact is not None, builds.asked == [runs], bool(found.revision)) == (built,) * 3
        builds.asked.clear()


def test_recordings_are_replayed_without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(modules.ENVIRONMENT, raising=False)
    workload = cell(2304, 1536, 1)
    times = {CUBLAS: 5.4, SHIPPED: 3.6, skinny(96, 2): 3.2, skinny(96, 4): 3.61}
    cases = [Case(workload, config, us) for config, us in times.items()]
    cases += [Case(workload, config, us, Stage.FINAL, "finals") for config, us in times.items()]
    path = recorded(tmp_path, cases)
    campaign = tmp_path / "replay.toml"
    campaign.write_text(
        'name = "replay"\noperators = ["vllm-skinny-gemm"]\ntokens = [1]\n[[shapes]]\noperator = "vllm-skinny-gemm"\n'
        f'n = 2304\nk = 1536\n[budget]\ntrials = 4\n[runner]\nkind = "replay"\nrecording = "{path}"\n'
    )
    summary = run_file(load_campaign(campaign), tmp_path / "replay.db")
    (outcome,) = summary.outcomes
    assert (outcome.best_us, outcome.baseline_us) == pytest.approx((3.2, 3.6))
