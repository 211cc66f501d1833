"""``megatune quickstart`` over a small recording made here: the better variant changes with the tokens."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from plan_examples import Case
from plan_examples import example_plan
from plan_examples import simt
from typer.testing import CliRunner

from megatune_dashboard import quickstart as quickstart_module
from megatune_dashboard.command import app
from megatune_db.queries import ExportRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture
from megatune_planner.plan import Plan
from megatune_planner.serving.choosing import options
from megatune_planner.serving.configuration import Level
from megatune_planner.step_review import deployments
from megatune_planner.step_review import predicted_steps
from megatune_tuner import doctor
from megatune_tuner import execution
from megatune_tuner.campaign_file import parse_campaign
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording
from megatune_tuner.recordings import shipped_recordings

TARGET = Target(
    Hardware("NVIDIA H200", "sm_90a", "2335", 132, 60 * 2**20, 140 * 2**30, "none"),
    Toolchain("580.0", "13.0", "4.8.1", "2.13.0"),
)
CUBLAS = Config.of("cublas", {})
CAMPAIGN = """
name = "small"
tokens = [1, 4]

[[shapes]]
operator = "projection"
n = 2304
k = 1536

[[shapes]]
operator = "projection"
n = 1536
k = 7168

[budget]
trials = 6
finalists = 2

[runner]
kind = "replay"
recording = "RECORDING"
"""


def time_us(workload: Workload, config: Config) -> float:
    """Variant simt wins at one token and loses at four; cuBLAS is 1.5 times as slow as the better one."""
    better = "simt" if workload.tokens == 1 else "mma"
    return 4.0 * {better: 1.0, "cublas": 1.5}.get(config.variant, 2.0)


def rows(workload: Workload, gain: float) -> list[ExportRow]:
    configs = [*operator("projection").space(workload, architecture("sm_90a")).defaults(), CUBLAS]
    found = []
    for stage, session in ((Stage.SEARCH, ""), (Stage.FINAL, "s")):
        for config in configs:
            us = time_us(workload, config) / (1.0 if config == CUBLAS else gain)
            samples = tuple(us * (1 + 0.0001 * step) for step in range(-5, 6))
            measurement = Measurement(
                workload=workload.digest,
                config=config.digest,
                target=TARGET.digest,
                regime=Regime(),
                stage=stage,
                status=Status.OK,
                provenance=Provenance.MEASURED,
                session=session,
                measured_at=datetime(2026, 1, 1),
                samples_us=samples,
                median_us=us,
                low_us=samples[2],
                high_us=samples[-3],
                launches_a_sample=10,
                flush_bytes=2**27,
            )
            fields = {**workload.to_dict(), "shape": workload.shape}
            found.append(ExportRow(measurement=measurement, variant=config.variant, params=config.params, **fields))
    return found


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the recording lies; what is shipped is replaced by ``CAMPAIGN``, which is all that is replayed."""
    monkeypatch.setattr(quickstart_module, "REPLAYED", quickstart_module.REPLAYED[:1])
    path = tmp_path / "small.parquet"
    text = CAMPAIGN.replace("RECORDING", str(path))
    monkeypatch.setattr(quickstart_module, "_shipped", lambda name: text)
    monkeypatch.setattr(doctor, "visible_gpus", tuple)
    write(path)
    return path


def write(path: Path, gain: float = 1.0) -> None:
    text = CAMPAIGN.replace('kind = "replay"', "").replace('recording = "RECORDING"', "")
    every = [row for workload in parse_campaign(text).workloads() for row in rows(workload, gain)]
    write_recording(path, every, About(TARGET, Regime(), version="0", campaign=text, sampling="defaults"))


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["quickstart", *arguments], prog_name="megatune")
    return result.exit_code, result.stdout, result.stderr


def test_it_ends_with_a_plan_and_says_what_it_gains(campaign: Path, tmp_path: Path) -> None:
    code, out, _ = run("--db", str(tmp_path / "new" / "small.db"))
    assert code == 0
    assert "1.50 times as fast as cublas (geometric mean of 4 shapes and tokens on NVIDIA H200" in out
    assert "1: simt, 2-3: stock, 4: mma, 5+: stock" in out
    file = tmp_path / "new" / "small.plan.json"
    assert str(file) in out
    assert Plan.load(file).content.name == "small"


def test_what_it_says_to_do_next_can_be_done(campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, _ = run("--db", "with space/small.db")
    steps = [
        shlex.split(line.partition("megatune ")[2]) for line in out.splitlines() if ": " in line and " it:" in line
    ]
    assert [step[0] for step in steps] == ["show", "approve", "export"]
    for step in steps:
        result = CliRunner().invoke(app, step, prog_name="megatune")
        assert result.exit_code == 0, result.output
    assert (tmp_path / "exported" / "plan.json").exists()


def test_it_names_the_projections_of_a_model() -> None:
    text = """
        name = "named"
        operators = ["projection"]
        tokens = [1]
        [model]
        name = "Kimi-K3"
        tensor_parallel = [8, 16]
        [budget]
        trials = 1
    """
    names = quickstart_module._projections(parse_campaign(text))
    assert names["k=7168,n=6288"] == ["TP8 kda_in_proj"]
    assert names["k=768,n=7168"] == ["TP8 shared_down", "TP16 kda_o_proj", "TP16 o_proj"]


def test_it_names_what_reads_the_weights_of_a_chain() -> None:
    (name,) = (each for each in quickstart_module.REPLAYED if "prefetch" in each)
    names = quickstart_module._chains(parse_campaign(quickstart_module._shipped(name)))
    assert names["idle_ns=3000,k1=7168,n1=560"] == ["TP8 front"]
    assert names["idle_ns=5000,k1=7168,k2=128,n1=6288,n2=1536"] == ["TP8 kda_in_proj, kda_f_b"]


def test_it_names_what_a_layer_has_once_by_its_ranks() -> None:
    parsed = {
        name: parse_campaign(quickstart_module._shipped(f"quickstart-{name}.toml")) for name in ("router", "experts")
    }
    assert quickstart_module._layers(parsed["router"]) == {
        "experts=896,k=7168,latent=448,top=16": ["TP8 router, latent down"],
        "experts=896,k=7168,latent=224,top=16": ["TP16 router, latent down"],
    }
    assert quickstart_module._layers(parsed["experts"]) == {
        "beta=4,experts=896,k=3584,linear_beta=25,top=16,width=384": ["TP8 routed experts"],
        "beta=4,experts=896,k=3584,linear_beta=25,top=16,width=192": ["TP16 routed experts"],
    }


def test_tables_of_a_shape_at_several_routings_are_told_apart(tmp_path: Path) -> None:
    workloads = [Workload.of("projection", {"n": 64, "k": 64}, 1, routing=routing) for routing in ("balanced", "same")]
    cases = [
        Case(workload, config, us, Stage.FINAL, workload.routing)
        for workload in workloads
        for config, us in ((simt(), 4.0), (CUBLAS, 8.0))
    ]
    table = quickstart_module.summary_table(example_plan(tmp_path, cases), {})
    assert list(table.columns[0].cells) == [
        "projection k=64,n=64, routing balanced",
        "projection k=64,n=64, routing same",
    ]


def test_each_replayed_campaign_has_a_plan_of_its_own_operators(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that share a database, the second one's plan has the first one's measurements where they are of its own
    operators alone."""
    chains = """
name = "chains"
operators = ["prefetch"]
tokens = [1]
[model]
name = "Kimi-K3"
tensor_parallel = 8
[budget]
trials = 2
finalists = 1
[runner]
kind = "replay"
recording = "kimi-k3-prefetch-h200"
"""
    small = quickstart_module._shipped("")
    monkeypatch.setattr(quickstart_module, "REPLAYED", ("small", "chains"))
    monkeypatch.setattr(quickstart_module, "_shipped", {"small": small, "chains": chains}.__getitem__)
    code, out, _ = run("--db", str(tmp_path / "both.db"))
    assert code == 0
    assert "times as fast as without prefetch and programmatic launch" in out
    plans = {name: Plan.load(tmp_path / f"{name}.plan.json").content for name in ("small", "chains")}
    assert {name: [each.name for each in plan.operators] for name, plan in plans.items()} == {
        "small": ["projection"],
        "chains": ["prefetch"],
    }


def test_the_recorded_router_front_goes_into_a_model_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the recording that is shipped to the step: at both numbers of ranks, as it was replayed."""
    monkeypatch.setattr(quickstart_module, "REPLAYED", ("quickstart-router.toml",))
    monkeypatch.setattr(doctor, "visible_gpus", tuple)
    code, out, _ = run("--db", str(tmp_path / "router.db"))
    assert code == 0
    assert "1-64: redundant, 65+: stock" in out
    assert "times as fast as a plain path of torch's, which servers do not run as it is (geometric mean of 24" in out
    plan = Plan.load(tmp_path / "quickstart-router.plan.json")
    found = deployments(plan)
    assert [(each.model.name, each.tensor) for each in found] == [("Kimi-K3", 8), ("Kimi-K3", 16)]
    for each in found:
        (first, *_) = predicted_steps(plan, None, each)
        (front,) = [part for part in first.parts if part.name == "router front"]
        assert (front.launches, front.provenance) == (each.model.moe_layers, "replayed")
        assert 3 * front.after_us.high < front.stock_us.low
        (option,) = options(plan, each.model, Level(1, 8, 1024), each.tensor, None)
        assert "router front" in {part.name for part in option.step.parts if part.plan_us is not None}
        assert "routing" not in option.step.missing


def test_run_again_it_measures_nothing_twice(campaign: Path, tmp_path: Path) -> None:
    db = tmp_path / "small.db"
    first = run("--db", str(db))
    write(campaign, gain=3.0)
    assert run("--db", str(db))[:2] == first[:2]


def test_stopped_it_says_how_to_go_on_with_the_same_database(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = SimpleNamespace(interrupted=True)
    monkeypatch.setattr(execution, "run_file", lambda *arguments, **options: summary)
    code, _, err = run("--db", str(tmp_path / "a b.db"))
    assert code == 130
    assert err == f"stopped; to go on: megatune quickstart --db '{tmp_path / 'a b.db'}'\n"


def test_without_a_gain_it_exits_3(campaign: Path, tmp_path: Path) -> None:
    write(campaign, gain=0.5)
    code, _, err = run("--db", str(tmp_path / "small.db"))
    assert code == 3
    assert "no gain" in err


def test_without_its_recording_it_says_so(campaign: Path, tmp_path: Path) -> None:
    campaign.unlink()
    code, _, err = run("--db", str(tmp_path / "small.db"))
    assert code == 2
    assert "there is no recording" in err
    assert len(err.splitlines()) == 1


def test_a_gpu_that_cannot_measure_yet_is_mentioned(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = doctor.Gpu(0, "NVIDIA H200", "9.0", 2**37, None, None)
    monkeypatch.setattr(doctor, "visible_gpus", lambda: (gpu,))
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report((), (gpu,), "580.0", None, ()))
    code, out, _ = run("--db", str(tmp_path / "small.db"))
    assert code == 0
    assert "nothing can be measured on it: `megatune doctor`" in out


def test_a_gpu_that_can_measure_gets_a_campaign_and_a_database_of_its_own(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = doctor.Gpu(0, "NVIDIA H200", "9.0", 2**37, 132, 60 * 2**20)
    fine = tuple(doctor.Finding(what, doctor.State.OK, "") for what in ("gpu 0", "launching", "compiling", "torch"))
    monkeypatch.setattr(doctor, "visible_gpus", lambda: (gpu,))
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report(fine, (gpu,), "580.0", None, ()))
    code, out, _ = run("--db", str(tmp_path / "small.db"))
    assert code == 0
    assert out.count("times as fast as cublas") == 2
    assert (tmp_path / "small-gpu.db").exists()


@pytest.mark.parametrize("name", [*quickstart_module.REPLAYED, quickstart_module.MEASURED])
def test_shipped_campaigns_are_valid(name: str) -> None:
    campaign = parse_campaign(quickstart_module._shipped(name), source=name)
    assert campaign.workloads()
    assert campaign.budget.total_seconds is None or campaign.budget.total_seconds <= 60
    assert campaign.runner.recording is None or campaign.runner.recording in shipped_recordings()
