"""The wheel of ``vllm-plugin`` in the released vLLM: what vLLM's own functions answer, at every number of tokens.

vLLM's modules that decide are the released ones, read from its wheel; torch, CUDA, the DSL and what else they import
are stand-ins (``stubs.py``), because none of it can be had without a GPU. See ``vllm_process.py``.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat
from plan_examples import BASELINES
from plan_examples import Case
from plan_examples import example_cases
from plan_examples import example_plan
from plan_examples import simt
from prefetch_examples import example_prefetch_plan
from reduction_examples import FANOUT
from reduction_examples import NCCL
from reduction_examples import TWO_STAGE
from reduction_examples import plan_of
from reduction_examples import reduction_cases
from reduction_examples import wins

from megatune_kernels.operator import Workload
from megatune_planner.context_errors import ContextErrors
from megatune_planner.exporters import batch_table
from megatune_planner.exporters.base import exporter
from megatune_planner.exporters.vllm_table_schema import Table as GemmTable
from megatune_planner.fallback import fallback_rules
from megatune_planner.plan import Plan
from megatune_planner.signing import sign
from tests.contract.runtime_wheels import unpack
from tests.contract.runtime_wheels import wheel

HERE = Path(__file__).parent
NEEDED = tuple(
    f"vllm/{folder}/" for folder in ("models/kimi_k3", "model_executor/kernels/linear/cute_dsl", "plugins", "utils")
)
TOKENS = [str(tokens) for tokens in range(1, 65)]

CONFIG = {
    "model_config": {
        "model": "moonshotai/Kimi-K3",
        "dtype": "torch.bfloat16",
        "enforce_eager": False,
        "max_model_len": 4096,
        "enable_sleep_mode": False,
    },
    "parallel_config": {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "nnodes": 1,
        "enable_expert_parallel": False,
        "enable_eplb": False,
        "use_ubatching": False,
        "distributed_timeout_seconds": None,
        "cpu_distributed_timeout_seconds": None,
    },
    "compilation_config": {"cudagraph_mode": {"name": "FULL_AND_PIECEWISE"}, "mode": {"name": "VLLM_COMPILE"}},
    "cache_config": {"kv_offloading_size": None, "use_replayssm": False, "use_kda_recoverssm": False},
    "offload_config": {"uva": {"cpu_offload_gb": 0}, "prefetch": {"offload_group_size": 0}},
    "speculative_config": None,
    "aux_output_config": {"enable_return_routed_experts": False},
    "lora_config": None,
    "kv_transfer_config": None,
    "additional_config": {"as_dict": True, "value": {"decode_backend": "latency_specialized"}},
}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(wheel("vllm"), tmp_path_factory.mktemp("vllm"), NEEDED)


@pytest.fixture(scope="module")
def gemm_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return example_plan(tmp_path_factory.mktemp("gemm"))


@pytest.fixture(scope="module")
def decode_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """At 8 ranks two-stage wins from 6 tokens and from 12, and stock at both widths from 48; at 16 it never does."""
    cases = [
        *reduction_cases(7168, 8, wins({1: FANOUT, 5: FANOUT, 6: TWO_STAGE, 40: TWO_STAGE, 48: NCCL, 64: NCCL})),
        *reduction_cases(3584, 8, wins({1: FANOUT, 11: FANOUT, 12: TWO_STAGE, 32: TWO_STAGE, 33: NCCL, 64: NCCL})),
        *reduction_cases(7168, 16, wins({1: FANOUT, 8: FANOUT, 9: TWO_STAGE, 64: TWO_STAGE})),
    ]
    return plan_of(tmp_path_factory.mktemp("decode"), cases)


def installed(plan: Plan, into: Path) -> Path:
    """The wheel as pip leaves it."""
    name, content = next(
        (name, content) for name, content in exporter("vllm-plugin").files(plan).items() if name.endswith(".whl")
    )
    assert isinstance(content, bytes)
    into.mkdir(exist_ok=True)
    (into / name).write_bytes(content)
    with zipfile.ZipFile(into / name) as archive:
        archive.extractall(into)
    (into / name).unlink()
    return into


def serve(
    vllm: Path,
    plugin: Path | None,
    plan: Plan,
    *,
    world: int = 8,
    change: Callable[[dict[str, Any]], None] = lambda asked: None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What one process of vLLM answers on the machine that the plan was made for."""
    asked: dict[str, Any] = {
        "root": str(vllm),
        "target": plan.content.target.fingerprint.to_dict(),
        "config": copy.deepcopy(CONFIG),
        "world": world,
        "shapes": ["1536x7168", "2304x1536", "7168x1536"],
    }
    asked["config"]["parallel_config"]["tensor_parallel_size"] = world
    change(asked)
    dsl = asked["target"]["toolchain"]["dsl"]
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / f"nvidia_cutlass_dsl-{dsl}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: {dsl}\n")
        paths = [folder, str(vllm), str(HERE), *([str(plugin)] if plugin else [])]
        result = subprocess.run(
            [sys.executable, "-W", "error", str(HERE / "vllm_process.py")],
            input=json.dumps(asked),
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "MEGATUNE_PLAN_WAIT_S": "2",
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def untouched(answer: dict[str, Any]) -> bool:
    return (
        answer["projections"] == answer["projections_before"]
        and answer["reductions"] == answer["reductions_before"]
        and answer["prefetches"] == answer["prefetches_before"]
        and answer["steps"] == list(range(1, 65))
    )


def expected_projections(plan: Plan, before: dict[str, Any]) -> dict[str, Any]:
    """vLLM's table with the plan's entries, but for those where it has a kernel that was not measured."""
    (file,) = (t for n, t in exporter("vllm-low-latency-table").files(plan).items() if n.endswith(".json"))
    table = GemmTable.model_validate_json(file)
    expected = copy.deepcopy(before)
    for shape in table.shapes:
        answers = expected[table.runtime.table].setdefault(f"{shape.n}x{shape.k}", dict.fromkeys(TOKENS))
        for entry in shape.entries:
            if answers[str(entry.tokens)] != "dsv3_fused_a":
                answers[str(entry.tokens)] = list(entry.config.model_dump().values())
    return expected


def test_projections_run_what_the_plan_says_at_every_number_of_tokens(
    vllm: Path, gemm_plan: Plan, tmp_path: Path
) -> None:
    answer = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan)
    expected = expected_projections(gemm_plan, answer["projections_before"])
    assert answer["projections"] == expected != answer["projections_before"]
    here = expected["KIMI_K3_PROJECTIONS_SM90"]
    assert answer["installed"] == answer["installed_again"] == {shape: here[shape] for shape in answer["installed"]}
    assert set(answer["installed"]) == {"1536x7168", "2304x1536", "7168x1536"}
    assert answer["reductions"] == answer["reductions_before"]


def test_a_model_that_was_imported_before_its_plugins_runs_what_the_plan_says(
    vllm: Path, gemm_plan: Plan, tmp_path: Path
) -> None:
    answer = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan, change=_set("early", to=True))
    assert answer["projections"] == expected_projections(gemm_plan, answer["projections_before"])
    assert not untouched(answer)


def test_a_shape_that_vllm_does_not_know_is_added(vllm: Path, tmp_path: Path) -> None:
    workload = Workload.of("projection", {"n": 768, "k": 7168}, 2)
    cublas = next(case.config for case in example_cases() if case.config.variant in BASELINES["projection"])
    plan = example_plan(tmp_path, [Case(workload, cublas, 10.0), Case(workload, simt(), 5.0)])
    answer = serve(vllm, installed(plan, tmp_path / "site"), plan)
    before, after = (answer[name]["KIMI_K3_PROJECTIONS_SM90"] for name in ("projections_before", "projections"))
    assert "768x7168" not in before
    assert after["768x7168"] == dict.fromkeys(TOKENS) | {"2": [2, 128, 2, 2, 8, None]}
    assert {shape: answers for shape, answers in after.items() if shape != "768x7168"} == before


def test_reductions_run_what_the_plan_says_at_every_number_of_tokens(
    vllm: Path, decode_plan: Plan, tmp_path: Path
) -> None:
    plugin = installed(decode_plan, tmp_path / "site")
    (file,) = (t for n, t in exporter("vllm-specialized-decode").files(decode_plan).items() if n.endswith(".json"))
    tables = json.loads(file)["tables"]
    for world in (8, 16):
        answer = serve(vllm, plugin, decode_plan, world=world)
        said = {t["module"].split("cutedsl.")[1]: t["value"] for t in tables if t["world"] == world}
        expected = answer["reductions_before"] | {name: sorted(batch_table.parse(text)) for name, text in said.items()}
        assert answer["reductions"] == expected != answer["reductions_before"]
        assert answer["steps"] == [t for t in range(1, 65) if world == 16 or t < 48]
        assert answer["projections"] == answer["projections_before"]


def test_prefetches_are_as_deep_as_the_plan_says(vllm: Path, tmp_path: Path) -> None:
    """A plan of one GPU's chains holds at any number of ranks; vLLM's own table stays where it says nothing."""
    plan = example_prefetch_plan(tmp_path)
    plugin = installed(plan, tmp_path / "site")
    for world, expected in (
        (8, {"1": [24, 0], "2": [24, 0], "3": 96, "4": [12, 0], "5": 64, "6": 64, "7": 64}),
        (16, {"1": [16, 0], "2": [16, 0], "3": 1024, "4": [8, 0], "5": 1024, "6": 1024, "7": 1024}),
    ):
        answer = serve(vllm, plugin, plan, world=world)
        assert answer["prefetches"] == expected != answer["prefetches_before"]
        assert answer["reductions"] == answer["reductions_before"]
        assert answer["steps"] == list(range(1, 65))


def test_another_table_of_prefetches_stays_as_it_is(vllm: Path, tmp_path: Path) -> None:
    plan = example_prefetch_plan(tmp_path)
    build = other_build(vllm, tmp_path / "build", (PREFETCH, "1:96.100,2-3:96", "1:64.100,2-3:96"))
    answer = serve(build, installed(plan, tmp_path / "site"), plan)
    assert untouched(answer)
    assert any("NEXT_ATTENTION[8] is '1:64.100" in line for line in answer["log"])


@pytest.mark.parametrize(
    ("admitted", "errors", "stock"),
    [
        (4096, {4096: 0.001, 8192: 0.02}, False),
        (4097, {4096: 0.001, 8192: 0.02}, True),
        (1, {4096: 0.02}, True),
    ],
)
def test_steps_are_stock_where_contexts_may_be_too_long(
    vllm: Path, decode_plan: Plan, tmp_path: Path, admitted: int, errors: dict[int, float], stock: bool
) -> None:
    """What a graph is captured with says nothing of the contexts that it is replayed with: the longest decides."""
    (shape, *_) = (
        each for each in decode_plan.operator("reduction").shapes if each.key[:3] == ("width=7168", "bf16", 8)
    )
    entry = {"operator": "reduction", "shape": "width=7168", "world": 8, "revision": shape.revision}
    measured = ContextErrors.model_validate(
        {
            "unit": "largest relative error",
            "limit": 0.01,
            "source": "a test",
            "target": decode_plan.content.target.digest,
            "errors": [
                {**entry, "config": band.decision.config, "context_tokens": length, "error": error}
                for band in shape.bands
                if band.decision.kind == "config"
                for length, error in errors.items()
            ],
        }
    )
    operators = decode_plan.content.operators
    fallback = fallback_rules(decode_plan.content.target, operators, measured)
    plan = Plan.of(decode_plan.content.model_copy(update={"fallback": fallback}))
    change = _set("config", "model_config", "max_model_len", to=admitted)
    answer = serve(vllm, installed(plan, tmp_path / "site"), plan, change=change)
    assert answer["steps"] == ([] if stock else list(range(1, 48)))
    counts = answer["status"]["counts"]
    assert ("hit step of 6 tokens: stock" in counts) == stock
    assert ("hit prepared.TWOSHOT at 6 tokens" in counts) != stock


def test_hits_and_misses_are_counted(vllm: Path, gemm_plan: Plan, decode_plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "status"
    folder.mkdir()
    answer = serve(
        vllm, installed(gemm_plan, tmp_path / "gemm"), gemm_plan, environment={"MEGATUNE_PLAN_STATUS": str(folder)}
    )
    counts = answer["status"]["counts"]
    assert counts["hit projection 1536x7168"] == counts["hit projection 2304x1536"] >= 2
    assert counts["miss projection 7168x1536"] >= 2
    (file,) = folder.iterdir()
    assert json.loads(file.read_text()) == answer["status"]
    counts = serve(vllm, installed(decode_plan, tmp_path / "decode"), decode_plan)["status"]["counts"]
    assert counts["hit step of 48 tokens: stock"] == 1
    assert counts["hit prepared.TWOSHOT at 6 tokens"] == 1
    assert "hit prepared.TWOSHOT at 48 tokens" not in counts


def test_the_status_says_why_nothing_changed(vllm: Path, gemm_plan: Plan, tmp_path: Path) -> None:
    plugin = installed(gemm_plan, tmp_path / "site")
    environment = {"MEGATUNE_PLAN_STATUS": str(tmp_path / "status")}
    changed = serve(vllm, plugin, gemm_plan, environment=environment)
    assert not untouched(changed)
    assert [line for line in changed["log"] if "no status is written: FileNotFoundError" in line] == changed["log"][1:]
    (tmp_path / "status").mkdir()
    build = other_build(vllm, tmp_path / "build", VERSION)
    for root, asked in ((vllm, _set("target", "hardware", "sms", to=114)), (build, lambda asked: None)):
        answer = serve(root, plugin, gemm_plan, change=asked, environment=environment)
        (file,) = (tmp_path / "status").iterdir()
        status = json.loads(file.read_text())
        file.unlink()
        assert status == answer["status"]
        ((name, outcome),) = status["outcome"].items()
        assert outcome.startswith("changed nothing: ")
        assert answer["log"] == [f"WARNING megatune plan {gemm_plan.digest}: {name}: {outcome}"]


def test_one_line_says_which_plan_changed_what(vllm: Path, gemm_plan: Plan, tmp_path: Path) -> None:
    (line,) = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan)["log"]
    assert line.startswith(f"INFO megatune plan {gemm_plan.digest}: low-latency GEMM: ")
    assert "low_latency_gemm.KIMI_K3_PROJECTIONS_SM90" in line


def test_plugins_import_nothing_of_the_engine(vllm: Path, gemm_plan: Plan, tmp_path: Path) -> None:
    assert serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan)["imported_early"] == []


def test_without_the_wheel_everything_is_as_before(vllm: Path, gemm_plan: Plan, decode_plan: Plan) -> None:
    """``pip uninstall`` is the way back: nothing of the plan is anywhere else."""
    for plan in (gemm_plan, decode_plan):
        answer = serve(vllm, None, plan)
        assert untouched(answer)
        assert answer["status"] is None


@pytest.mark.parametrize(
    ("value", "level", "says"),
    [("off", "INFO", "unused, MEGATUNE_PLAN=off"), ("of", "WARNING", "MEGATUNE_PLAN=of, which is neither on nor off")],
)
def test_the_switch(vllm: Path, gemm_plan: Plan, tmp_path: Path, value: str, level: str, says: str) -> None:
    answer = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan, environment={"MEGATUNE_PLAN": value})
    assert untouched(answer)
    assert all(line.startswith(level) and says in line for line in answer["log"])
    assert answer["log"]


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(asked: dict[str, Any]) -> None:
        part = asked
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(asked: dict[str, Any]) -> None:
        part = asked
        for name in path[:-1]:
            part = part[name]
        del part[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("target", "hardware", "sms", to=114), "hardware.sms 132, here it is 114"),
        (_set("target", "hardware", "device_id", to="2330"), "hardware.device_id"),
        (_set("target", "hardware", "memory_bytes", to=80 * 2**30), "hardware.memory_bytes"),
        (_set("target", "toolchain", "driver", to="590.10"), "toolchain.driver '580.00', here it is '590.10'"),
        (_set("target", "toolchain", "torch", to="2.12.0"), "toolchain.torch"),
        (_set("target", "toolchain", "dsl", to="4.9.0"), "toolchain.dsl"),
        (_set("config", "model_config", "dtype", to="torch.float16"), "dtype bf16, here it is 'fp16'"),
        (_set("config", "model_config", "enforce_eager", to=True), "execution 'graph', here it is 'eager'"),
        (
            _set("config", "compilation_config", "cudagraph_mode", "name", to="PIECEWISE"),
            "execution 'graph', here it is 'piecewise'",
        ),
        (
            _set("config", "aux_output_config", "enable_return_routed_experts", to=True),
            "not measured with routed_experts_output",
        ),
        (_set("config", "parallel_config", "enable_expert_parallel", to=True), "not measured with expert_parallel"),
        (_set("config", "lora_config", to={"max_loras": 1}), "not measured with lora"),
        (_set("config", "additional_config", "value", to={"megatune_plan": "0123456789abcdef"}), "asks for the plan"),
        (_drop("config", "parallel_config", "enable_eplb"), "no attribute 'enable_eplb'"),
    ],
)
def test_another_machine_or_deployment_changes_nothing(
    vllm: Path, gemm_plan: Plan, tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    answer = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan, change=change)
    assert untouched(answer)
    (line,) = answer["log"]
    assert line.startswith(f"WARNING megatune plan {gemm_plan.digest}: low-latency GEMM: changed nothing: ")
    assert says in line


def test_the_plan_that_the_config_asks_for_serves(vllm: Path, gemm_plan: Plan, tmp_path: Path) -> None:
    change = _set("config", "additional_config", "value", to={"megatune_plan": gemm_plan.digest})
    assert not untouched(serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan, change=change))


def other_build(vllm: Path, into: Path, *changes: tuple[str, str, str]) -> Path:
    """The released sources, with texts in some of them replaced."""
    shutil.copytree(vllm, into)
    for file, old, new in changes:
        text = (into / file).read_text()
        assert old in text, file
        (into / file).write_text(text.replace(old, new))
    return into


KIMI = "vllm/models/kimi_k3/nvidia"
GEMM = f"{KIMI}/low_latency_gemm.py"
SKINNY = "vllm/model_executor/kernels/linear/cute_dsl/skinny_gemm.py"
OPROJ = f"{KIMI}/specialized_decode/cutedsl/oproj/prepared.py"
TAIL = f"{KIMI}/specialized_decode/cutedsl/moe/tail_runtime.py"
PREFETCH = f"{KIMI}/specialized_decode/runtime/prefetch.py"
POLICY = f"{KIMI}/specialized_decode/cutedsl/common/policy.py"
DECODE = f"{KIMI}/specialized_decode/runtime/decode.py"
VERSION = ("vllm-0.33.0.dist-info/METADATA", "Version: 0.33.0", "Version: 0.34.1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([VERSION], "vllm 0.34.1 is installed, and the tables are those of 0.33.0"),
        ([(GEMM, '    name: str = ""', '    name: str = ""\n    more: int = 0')], "has not exactly the fields n, k, "),
        ([(GEMM, "k_unroll", "unroll"), (SKINNY, "k_unroll", "unroll")], "SkinnyGemmConfig has not exactly the fields"),
        (
            [(GEMM, "_build_plan(spec: ProjectionSpec)", "_build_plan(spec, more=0)")],
            "_build_plan is no function of spec",
        ),
        ([(GEMM, "    (1536, 128): _sm90_spec(1536, 128,", "    (1536, 127): _sm90_spec(1536, 128,")], "of this shape"),
        (
            [(GEMM, "return plan\n", "return plan and dict(list(plan.items())[1:])\n")],
            "read otherwise than it was written",
        ),
        (
            [(GEMM, "    dtype: torch.dtype,\n) -> None", "    dtype: torch.dtype,\n    more=0,\n) -> None")],
            "of module, dtype",
        ),
    ],
)
def test_another_build_of_the_gemm_changes_nothing(
    vllm: Path, gemm_plan: Plan, tmp_path: Path, changes: list[tuple[str, str, str]], says: str
) -> None:
    build = other_build(vllm, tmp_path / "build", *changes)
    answer = serve(build, installed(gemm_plan, tmp_path / "site"), gemm_plan)
    assert untouched(answer)
    assert any("changed nothing: " in line and says in line for line in answer["log"]), answer["log"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([VERSION], "vllm 0.34.1 is installed"),
        ([(OPROJ, '8: "33-64:1"', '8: "32-64:1"')], "TWOSHOT[8] is '32-64:1', and was '33-64:1'"),
        ([(TAIL, 'TWOSHOT = {8: "", ', "TWOSHOT = {")], "TWOSHOT[8] is None, and was ''"),
        ([(TAIL, "TWOSHOT", "TWOSTAGE")], "tail_runtime has no dict TWOSHOT"),
        ([(POLICY, "int(hi or lo) + 1", "int(hi or lo)")], "is read as"),
        ([(POLICY, "def batch_table(spec)", "def batch_table(spec, tp=8)")], "batch_table is no function of spec"),
        ([(DECODE, "positions, intermediate_tensors)", "positions, intermediate_tensors, a=0)")], "plan is no"),
        (
            [(DECODE, "def __init__(self, backbone, config)", "def __init__(self, backbone, config, more=0)")],
            "Decode is",
        ),
    ],
)
def test_another_build_of_the_decode_changes_nothing(
    vllm: Path, decode_plan: Plan, tmp_path: Path, changes: list[tuple[str, str, str]], says: str
) -> None:
    build = other_build(vllm, tmp_path / "build", *changes)
    answer = serve(build, installed(decode_plan, tmp_path / "site"), decode_plan)
    assert untouched(answer)
    assert any("changed nothing: " in line and says in line for line in answer["log"]), answer["log"]


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"3": None}, "rank 3 has no such plan, or was too late"),
        ({"5": "plan 0123456789abcdef"}, "rank 5 plan 0123456789abcdef"),
        ({"1": "refuses: toolchain.driver is another"}, "rank 1: toolchain.driver is another"),
        ({"7": "quiet"}, "rank 7 did not confirm"),
        ({"6": "elsewhere"}, "the plan was not measured with multi_node"),
    ],
)
@pytest.mark.parametrize("tables", ["low-latency GEMM", "specialised decode"])
def test_ranks_that_differ_change_nothing(
    vllm: Path,
    gemm_plan: Plan,
    decode_plan: Plan,
    tmp_path: Path,
    others: dict[str, str | None],
    says: str,
    tables: str,
) -> None:
    """Alone with the plan's tables a rank would wait for peers that write elsewhere, or compute other bits."""
    plan = gemm_plan if tables == "low-latency GEMM" else decode_plan
    every: dict[str, str | None] = {str(rank): "same" for rank in range(1, 8)} | others
    answer = serve(vllm, installed(plan, tmp_path / "site"), plan, change=_set("others", to=every))
    assert untouched(answer)
    (line,) = answer["log"]
    assert f"{tables}: changed nothing: " in line
    assert says in line


def test_links_are_looked_at(vllm: Path, decode_plan: Plan, tmp_path: Path) -> None:
    """What was measured over all links of a GPU does not hold where some are down."""
    change = _set("target", "hardware", "links", to="nvlink-17")
    answer = serve(vllm, installed(decode_plan, tmp_path / "site"), decode_plan, change=change)
    assert untouched(answer)
    assert "ranks reach one another over 'nvlink-17', measured was 'nvlink-18'" in answer["log"][0]


@pytest.mark.parametrize(
    ("signed", "given", "says"),
    [
        (True, "hexadecimal", ""),
        (True, "file", ""),
        (True, "another", "the plan is not signed with the key that is given"),
        (True, "missing.pem", "MEGATUNE_PLAN_KEY is neither 64 hexadecimal digits nor a file that can be read"),
        (False, "hexadecimal", "the plan is not signed, and a key is given"),
    ],
)
def test_a_plan_that_a_trusted_key_did_not_sign_changes_nothing(
    vllm: Path, gemm_plan: Plan, tmp_path: Path, signed: bool, given: str, says: str
) -> None:
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    plan = sign(gemm_plan, pem) if signed else gemm_plan
    public = private.public_key()
    (tmp_path / "key.pub").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    key = {
        "hexadecimal": public.public_bytes_raw().hex(),
        "file": str(tmp_path / "key.pub"),
        "another": Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex(),
    }.get(given, str(tmp_path / given))
    answer = serve(vllm, installed(plan, tmp_path / "site"), plan, environment={"MEGATUNE_PLAN_KEY": key})
    assert untouched(answer) == bool(says)
    assert says in answer["log"][0]


@pytest.mark.parametrize(
    ("seconds", "says"), [("0", "is no number of seconds"), ("a while", "is no number of seconds"), ("3", "")]
)
def test_the_wait_can_be_set(vllm: Path, gemm_plan: Plan, tmp_path: Path, seconds: str, says: str) -> None:
    environment = {"MEGATUNE_PLAN_WAIT_S": seconds}
    answer = serve(vllm, installed(gemm_plan, tmp_path / "site"), gemm_plan, environment=environment)
    assert untouched(answer) == bool(says)
    assert says in answer["log"][0]


def test_ranks_that_the_plan_says_nothing_of(vllm: Path, decode_plan: Plan, tmp_path: Path) -> None:
    answer = serve(vllm, installed(decode_plan, tmp_path / "site"), decode_plan, world=4)
    assert untouched(answer)
    assert "the plan says nothing of 4 ranks" in answer["log"][0]


@pytest.mark.parametrize("file", ["plan.json", "overlay.json", "reader.py"])
def test_a_damaged_wheel_changes_nothing(vllm: Path, gemm_plan: Plan, tmp_path: Path, file: str) -> None:
    plugin = installed(gemm_plan, tmp_path / "site")
    damaged = plugin / "megatune_vllm_plan" / file
    damaged.write_text(damaged.read_text()[:1000])
    answer = serve(vllm, plugin, gemm_plan)
    assert untouched(answer)
    assert "changed nothing: " in answer["log"][0]


def test_vllm_may_be_told_to_load_other_plugins_alone(vllm: Path, gemm_plan: Plan, tmp_path: Path) -> None:
    plugin = installed(gemm_plan, tmp_path / "site")
    assert untouched(serve(vllm, plugin, gemm_plan, change=_set("plugins", to=["another"])))
    assert not untouched(serve(vllm, plugin, gemm_plan, change=_set("plugins", to=["megatune_vllm_plan"])))
