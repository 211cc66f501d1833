from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plan_examples import BASELINES
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import example_cases
from plan_examples import fill
from reduction_examples import example_reduction_plan

from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_planner.features import FEATURES
from megatune_planner.gate import Gate
from megatune_planner.plan import Plan
from megatune_planner.planning import make_plan
from megatune_planner.reader import PARTS
from megatune_planner.reader import PlanError
from megatune_planner.reader import Reader
from megatune_planner.reader import device_id_of
from megatune_planner.reader import device_ids_of
from megatune_planner.reader import load
from megatune_planner.rendering import gate_text

HERE = TARGET.to_dict()
SERVES: dict[str, Any] = {"model": "any", "world": 8, "dtype": "bf16", "execution": "graph", "features": []}
LAUNCH = ("projection", "k=7168,n=1536", 1)


def opened(plan: Plan, deployment: dict[str, Any] | None = None, **hardware: Any) -> Reader:
    """The reader on the example's machine after a change; None leaves a field out."""
    changed = {name: value for name, value in (HERE["hardware"] | hardware).items() if value is not None}
    return load(plan.to_json(), target=HERE | {"hardware": changed}, deployment=deployment)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The example's plan for one model, which accepts two features."""
    with open_database(tmp_path_factory.mktemp("narrow") / "n.db") as database, database.session() as session:
        fill(session, example_cases())
        return make_plan(
            session,
            name="narrow",
            target=TARGET.digest,
            regime=REGIME,
            baselines=BASELINES,
            model="Kimi-K3",
            features=("lora", "disaggregation"),
            parent="0123456789abcdef",
        )


def test_the_gate_follows_from_what_was_measured(plan: Plan, narrow: Plan, tmp_path: Path) -> None:
    gate = plan.content.gate
    assert (gate.part, gate.arch, gate.sms, gate.device_ids) == ("H200 SXM", "sm_90a", 132, ("2335",))
    assert gate.memory_bytes_lo < TARGET.hardware.memory_bytes < gate.memory_bytes_hi
    assert (gate.execution, gate.dtypes, gate.max_tokens, gate.resident_blocks) == ("graph", ("bf16",), 64, 0)
    assert (gate.model, gate.worlds, gate.features) == (None, (), ())
    assert (narrow.content.gate.model, narrow.content.gate.features) == ("Kimi-K3", ("disaggregation", "lora"))
    assert narrow.content.parent == "0123456789abcdef"
    assert narrow.digest != plan.digest
    assert example_reduction_plan(tmp_path).content.gate.worlds == (4, 8, 16)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("NVIDIA H200", "2335"),
        ("NVIDIA-H200-SXM", "2335"),
        ("NVIDIA H200 SXM 141GB", "2335"),
        ("nvidia_h200_141gb_hbm3e", "2335"),
        ("NVIDIA H200 Tensor Core GPU", "2335"),
        ("NVIDIA H200 NVL", "233b"),
        ("NVIDIA_H200_NVL", "233b"),
        ("NVIDIA_H200", "2335 233b"),  # vLLM calls the files of both so
        ("NVIDIA H100 80GB HBM3", "2330"),
        ("NVIDIA_H100_80GB_HBM3", "2330"),
        ("H100 SXM5 80GB", "2330"),
        ("NVIDIA H100 PCIe", "2331"),
        ("NVIDIA H100 NVL", "2321"),
        ("NVIDIA H100", "2330 2337 2338 2339 2331 2321"),
        ("NVIDIA H100 SXM", "2330 2337 2338 2339"),
        ("NVIDIA GH200 480GB", "2342"),
        ("NVIDIA B200", "2901"),
        ("NVIDIA_B200", "2901"),
        ("NVIDIA B200 SXM", "2901"),
        ("NVIDIA GB200", "2941"),
        ("NVIDIA B300 SXM6 AC", "3182"),
        ("NVIDIA_GB300", "31c2 31c3"),
        ("NVIDIA GB300", "31c2 31c3"),
        ("GB300 MaxQ", "31a1"),
        ("NVIDIA H200 MIG 1g.18gb", ""),
        ("NVIDIA H20", ""),
        ("H2000", ""),
        ("", ""),
    ],
)
def test_a_name_stands_for_the_parts_that_go_by_it(name: str, ids: str) -> None:
    assert device_ids_of(name) == tuple(ids.split())


def test_no_device_id_is_two_parts_and_spellings_are_normal() -> None:
    ids = [each for of_part, _ in PARTS.values() for each in of_part]
    assert len(ids) == len(set(ids))
    for of_part, spellings in PARTS.values():
        for spelling in spellings:
            assert set(of_part) <= set(device_ids_of(spelling)) & set(device_ids_of(f"NVIDIA {spelling.upper()}"))


@pytest.mark.parametrize("spelled", ["2335", "0x2335", "0X2335", 0x2335, "0x233510DE", "233510de", 0x233510DE])
def test_device_ids_are_spelled_in_many_ways(spelled: str | int, plan: Plan) -> None:
    assert device_id_of(spelled) == "2335"
    assert opened(plan, device_id=spelled).reason == ""


@pytest.mark.parametrize(
    "hardware",
    [
        {"gpu": "whatever it is called"},  # the device id decides
        {"arch": "sm_90"},
        {"arch": "9.0"},
        {"arch": (9, 0)},
        {"l2_bytes": None, "links": None, "world": None},
        {"memory_bytes": int(TARGET.hardware.memory_bytes * 0.985)},
        {"device_id": None},
        {"device_id": None, "gpu": "NVIDIA-H200-SXM"},
    ],
    ids=str,
)
def test_the_same_hardware_spelled_otherwise_serves(plan: Plan, hardware: dict[str, Any]) -> None:
    reader = opened(plan, **hardware)
    assert reader.reason == ""
    assert reader.select(*LAUNCH) is not None


@pytest.mark.parametrize(
    ("hardware", "says"),
    [
        ({"device_id": "233b"}, "hardware.device_id 2335, here it is '233b'"),  # the NVL has the same SMs and memory
        ({"device_id": "233b", "gpu": "NVIDIA H200"}, "here it is '233b'"),
        ({"device_id": "none"}, "hardware.device_id"),
        ({"device_id": []}, "hardware.device_id"),
        ({"device_id": None, "gpu": "NVIDIA H200 NVL"}, "is no name of it"),
        (
            {"device_id": None, "gpu": "NVIDIA_H200"},
            "may be 2335 or 233b, the plan holds for 2335: say hardware.device_id",
        ),
        ({"device_id": None, "gpu": None}, "says neither hardware.device_id nor hardware.gpu"),
        ({"arch": "sm_100a"}, "hardware.arch 'sm_90a', here it is 'sm_100a'"),
        ({"arch": None}, "hardware.arch"),
        ({"sms": 16}, "hardware.sms 132, here it is 16"),  # a partition of the same GPU
        ({"sms": None}, "hardware.sms"),
        ({"memory_bytes": 80 * 2**30}, "hardware.memory_bytes from"),
        ({"memory_bytes": None}, "hardware.memory_bytes from"),
    ],
    ids=str,
)
def test_other_hardware_gets_stock_and_the_reason(plan: Plan, hardware: dict[str, Any], says: str) -> None:
    reader = opened(plan, **hardware)
    assert says in reader.reason
    assert reader.select(*LAUNCH) is None
    assert reader.explain(*LAUNCH) == f"stock: {reader.reason}"


def test_what_was_measured_on_either_gb300_serves_on_both(plan: Plan) -> None:
    content = json.loads(plan.content.model_dump_json())
    content["gate"] |= {"device_ids": ["31c2", "31c3"], "part": "GB300"}
    changed = Plan.of(type(plan.content).model_validate_json(json.dumps(content)))
    assert opened(changed, device_id="31c3").reason == ""
    assert opened(changed, device_id=None, gpu="NVIDIA GB300").reason == ""
    assert "31c2 or 31c3" in opened(changed, device_id="31a1").reason


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": "kimi-k3"},
        {"model": "moonshotai/Kimi-K3"},
        {"model": "/models/Kimi_K3/"},
        {"features": ["lora"]},
        pytest.param({"features": {"lora", "disaggregation"}}, id="features in a set"),
        {"world": 16},
        {"max_context_tokens": 131072},
    ],
    ids=str,
)
def test_the_deployment_that_the_gate_asks_for_serves(narrow: Plan, change: dict[str, Any]) -> None:
    reader = opened(narrow, SERVES | {"model": "Kimi-K3"} | change)
    assert reader.reason == ""
    assert reader.select(*LAUNCH) is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "Kimi-K2"}, "the plan holds for the model 'Kimi-K3', here it is 'Kimi-K2'"),
        ({"model": None}, "here it is None"),
        ({"dtype": "fp8"}, "the plan holds for dtype bf16, here it is 'fp8'"),
        ({"execution": "eager"}, "the plan holds for execution 'graph', here it is 'eager'"),
        ({"features": ["lora", "expert_parallel"]}, "the plan was not measured with expert_parallel"),
        ({"features": ["what nobody knows"]}, "the plan was not measured with what nobody knows"),
        ({"features": "lora"}, "does not say its features: an empty list"),
        ({"features": None}, "does not say its features"),
        ({"max_context_tokens": "long"}, "max_context_tokens is a number of tokens, not 'long'"),
    ],
    ids=str,
)
def test_another_deployment_gets_stock_and_the_reason(narrow: Plan, change: dict[str, Any], says: str) -> None:
    reader = opened(narrow, SERVES | {"model": "Kimi-K3"} | change)
    assert says in reader.reason
    assert reader.select(*LAUNCH) is None


@pytest.mark.parametrize("deployment", [{}, {"model": "Kimi-K3"}])
def test_a_deployment_that_says_less_is_another_one(narrow: Plan, deployment: dict[str, Any]) -> None:
    assert opened(narrow, deployment).reason != ""


def test_every_feature_is_refused_unless_it_is_accepted(plan: Plan, narrow: Plan) -> None:
    for feature in FEATURES:
        assert opened(plan, SERVES | {"features": [feature]}).reason.endswith(f"measured with {feature}")
        accepted = feature in ("lora", "disaggregation")
        assert (opened(narrow, SERVES | {"model": "Kimi-K3", "features": [feature]}).reason == "") is accepted


def test_a_reduction_holds_for_its_worlds_and_links(tmp_path: Path) -> None:
    plan = example_reduction_plan(tmp_path)
    target = plan.content.target.model_dump(exclude={"digest"})
    shape = next(each for each in plan.operator("reduction").shapes if each.world == 8)
    launch = ("reduction", shape.shape, shape.measured_tokens[0], "bf16", 8)
    here = load(plan.to_json(), target=target, deployment=SERVES)
    assert here.reason == ""
    assert here.select(*launch) is not None
    assert (
        "world of 4 or 8 or 16, here it is 2"
        in load(plan.to_json(), target=target, deployment=SERVES | {"world": 2}).reason
    )
    for links in ("pcie", None):
        hardware = {k: v for k, v in (target["hardware"] | {"links": links}).items() if v is not None}
        other = load(plan.to_json(), target=target | {"hardware": hardware}, deployment=SERVES)
        assert other.reason == ""
        assert other.select(*launch) is None
        assert f"over {links or 'unknown'!r}, measured was" in other.explain(*launch)


def test_a_gate_for_people(plan: Plan, narrow: Plan) -> None:
    assert gate_text(plan.content.gate) == (
        "H200 SXM (sm_90a, 132 SMs, device 2335); any model with these shapes; any number of ranks; bf16, graph; "
        "no feature that it was not measured with"
    )
    assert "Kimi-K3" in gate_text(narrow.content.gate)
    assert "with disaggregation, lora" in gate_text(narrow.content.gate)


def test_an_unknown_feature_is_one_line(narrow: Plan, tmp_path: Path) -> None:
    with open_database(tmp_path / "n.db") as database, database.session() as session:
        fill(session, example_cases())
        with pytest.raises(MegatuneError, match="no such feature: 'magic'; allowed: pipeline_parallel, "):
            make_plan(
                session,
                name="n",
                target=TARGET.digest,
                regime=REGIME,
                baselines=BASELINES,
                features=("magic",),
            )
    value = narrow.content.gate.model_dump(mode="json") | {"memory_bytes_lo": 2**60}
    with pytest.raises(ValueError, match="memory cannot end before it begins"):
        Gate.model_validate_json(json.dumps(value))


def test_a_target_that_is_none_is_one_line(plan: Plan) -> None:
    for target in ({}, {"hardware": None}, {"hardware": []}):
        assert load(plan.to_json(), target=target).reason == "the target does not say its hardware"
    with pytest.raises(PlanError):
        load("nowhere.json", target=HERE)
