"""The commands ``crossovers`` and ``predict``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crossover_examples import BASELINES
from crossover_examples import GROUP
from crossover_examples import baselines
from crossover_examples import cells
from crossover_examples import default
from crossover_examples import variants
from plan_examples import example_cases
from plan_examples import fill
from typer.testing import CliRunner

from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_planner.commands import app
from megatune_planner.published.documents import shipped_entries
from megatune_planner.published.importing import import_published
from megatune_planner.published.importing import target_of

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command in an empty directory and returns its output; what a user can mend is raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGATUNE_DB", raising=False)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, cells(variants() | baselines()), GROUP)
    return tmp_path / "megatune.db"


def test_crossovers_of_a_database_and_of_a_plan(run: Run, measured: Path) -> None:
    printed = run("crossovers")
    assert "reduction width=7168  bf16, world 2\n  crossover full_fanout to two_stage between 64 and 128" in printed
    assert "  to narrow them, measure 96 tokens\n" in printed
    run("plan", "--name", "p")
    assert run("crossovers", "p.json") == run("crossovers", "p") == printed
    assert run("crossovers", "p", "--operator", "projection") == ""
    (shape,) = json.loads(run("crossovers", "--json"))["shapes"]
    assert (shape["world"], shape["shape"], shape["measure_next"]) == (2, "width=7168", [96])
    (crossover,) = shape["crossovers"]
    assert (crossover["kind"], crossover["unit"], crossover["tokens_lo"], crossover["tokens_hi"]) == (
        "interval",
        "tokens",
        64,
        128,
    )
    assert crossover["traffic"]["unit"] == "bytes"
    assert json.loads(run("crossovers", "p.json", "--json"))["shapes"] == [shape]


def test_crossovers_need_no_plan_and_no_gain(run: Run, tmp_path: Path) -> None:
    """Where the baseline is faster than both variants nothing is worth planning, and they cross all the same."""
    slow = {config: lambda t, curve=curve: 100 * curve(t) for config, curve in variants().items()}
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, cells(slow | baselines()), GROUP)
    with pytest.raises(NothingMeasured):
        run("plan")
    assert "crossover full_fanout to two_stage between 64 and 128" in run("crossovers")


def test_nothing_to_compare_exits_with_three(run: Run, tmp_path: Path) -> None:
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, cells({default("full_fanout"): lambda t: 2.0} | baselines()), GROUP)
    with pytest.raises(NothingMeasured, match="no two variants were measured at the same tokens") as raised:
        run("crossovers")
    assert raised.value.exit_code == 3


def test_published_crossovers(run: Run) -> None:
    printed = run("crossovers", "--published")
    assert len(printed.splitlines()) > 1000
    one = run("crossovers", "--published", "k3-oproj")
    assert "multicast_fanout | two_shot: interval 32-64 tokens, near 35.96" in one
    (entry,) = json.loads(run("crossovers", "k3-oproj", "--published", "--json"))["entries"]
    assert entry["provenance"] == "imported"
    assert entry["answers"][0]["crossovers"][0]["tokens"] == {"lo": 32.0, "hi": 64.0, "estimate": 35.96}
    assumed = run("crossovers", "--published", "vllm-custom-ar-1stage", "--width", "7168", "--dtype", "bf16")
    assert "1stage | 2stage: point 262143-262144 bytes (18.29 tokens)" in assumed


def test_published_figures_can_come_from_a_file(run: Run, tmp_path: Path) -> None:
    rows = [{"tokens": tokens, "one_shot_us": 1.0 + tokens, "two_shot_us": 6.5} for tokens in range(1, 9)]
    (tmp_path / "mine.json").write_text(json.dumps({"world": 8, "hidden": 7168, "dtype": "bf16", "rows": rows}))
    assert "one_shot | two_shot: point 5-6 tokens" in run("crossovers", "--figures", "mine.json")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("crossovers", "--published", "magic"), "no published entry has 'magic' in its id"),
        (("crossovers", "--figures", "missing.json"), "cannot read missing.json"),
        (("crossovers", "--operator", "magic"), "unknown operator 'magic'"),
        (("crossovers", "missing.json"), "cannot read the plan missing.json"),
        (("crossovers", "--regime", "tepid"), "no such regime"),
        (("predict", "--world", "16"), "says something of worlds from 2 to 8"),
        (("predict", "--tokens", "600"), "no prediction for 600 tokens"),
        (("predict", "--width", "3584"), "no prediction for width 3584"),
        (("predict", "--target", "nowhere"), "no target 'nowhere'"),
        (("predict", "--provenance", "predicted"), "'predicted' is no evidence"),
        (("predict", "--provenance", "emulated"), "nothing of reduction is emulated"),
    ],
)
def test_bad_input_is_one_line(run: Run, measured: Path, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(MegatuneError) as raised:
        run(*arguments)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == (3 if "emulated" in arguments else 2)


def test_predictions_say_that_they_are(run: Run, measured: Path) -> None:
    printed = run("predict", "--world", "4", "--world", "8")
    assert printed.startswith("fitted to measured cells of target")
    assert "full_fanout: 1 x 2.00 µs a hop" in printed
    assert "each predicted without it: median 0.0%" in printed
    assert "predicted: world 8, width 7168" in printed
    assert "predicted crossover of full_fanout and two_stage" in printed
    found = json.loads(run("predict", "--world", "4", "--tokens", "64", "--json"))
    assert {each["provenance"] for each in found["latencies"] + found["crossovers"]} == {"predicted"}
    assert {(each["world"], each["tokens"]) for each in found["latencies"]} == {(4, 64)}
    assert {model["variant"] for model in found["models"]} == {
        "full_fanout",
        "two_stage",
        "torch_one_shot",
        "torch_two_shot",
    }
    inside = json.loads(run("predict", "--json"))
    assert {each["world"] for each in inside["latencies"]} == {2}


@pytest.mark.parametrize("last", ["kernel", "baseline"])
def test_predictions_rest_on_kernels_and_baselines_whichever_was_measured_last(
    run: Run, tmp_path: Path, last: str
) -> None:
    """Kernels have a revision and baselines none."""
    made = [
        replace(case, revision="" if case.config.variant in BASELINES["reduction"] else "kernels")
        for case in cells(variants() | baselines())
    ]
    made.sort(key=lambda case: bool(case.revision) == (last == "kernel"))
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, made, GROUP)
    found = json.loads(run("predict", "--json"))
    assert {model["variant"]: model["cells"] for model in found["models"]} == dict.fromkeys(
        ("full_fanout", "two_stage", "torch_one_shot", "torch_two_shot"), 10
    )


def test_a_model_is_of_one_revision_of_the_kernels(run: Run, tmp_path: Path) -> None:
    made = [
        replace(case, revision=f"{width}" * 4)
        for width in (3584, 7168)
        for case in cells({default(name, width): lambda t: 2 + t / 10 for name in ("full_fanout",)}, width=width)
    ]
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, made, GROUP)
    with pytest.raises(MegatuneError, match=r"width=3584 world=2 \(revision 35843584\) and width=7168 .* differ; run"):
        run("predict")


def test_imported_figures_predict_too(run: Run, tmp_path: Path) -> None:
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        import_published(session)
    with pytest.raises(MegatuneError, match="several targets"):
        run("predict", "--provenance", "imported")
    entries = {each["id"]: each for each in shipped_entries()}
    probe, torch = (target_of(entries[name], 2).digest for name in ("h200x2-cuda-probe", "h200x2-torch-nccl"))
    with pytest.raises(MegatuneError, match="of one machine"):
        run("predict", "--target", probe, "--target", torch, "--provenance", "imported")
    options = ("--target", probe, "--provenance", "imported", "--regime", "warm-graph")
    assert "fitted to imported cells" in run("predict", *options, "--world", "2", "--world", "4")


def test_other_operators_have_no_traffic_to_model(run: Run, tmp_path: Path) -> None:
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, example_cases())
    with pytest.raises(NothingMeasured, match="nothing of reduction is measured"):
        run("predict")
    assert "projection k=7168,n=1536" in run("crossovers")


def test_each_command_has_help_with_an_example(run: Run) -> None:
    for command in ("crossovers", "predict"):
        assert f"Example: megatune {command}" in run(command, "--help")
