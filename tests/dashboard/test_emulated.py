"""From a recording of ranks that shared a GPU to a plan, through the commands: it plans, and serves nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner
from typer.testing import Result

from megatune_dashboard.command import app
from megatune_kernels.operator import operator
from megatune_planner.plan import Plan
from megatune_tuner.recording_file import read_table
from megatune_tuner.recording_file import write_table
from megatune_tuner.recordings import shipped_recordings
from megatune_tuner.recordings import workload_of

TOKENS = (1, 8, 64)
CAMPAIGN = f"""
name = "emulated"
operators = ["reduction"]
tokens = [1, 8]

[[shapes]]
operator = "reduction"
width = 7168
world = 2
tokens = {list(TOKENS)}

[budget]
trials = 6
finalists = 1

[runner]
kind = "replay"
recording = "emulated.parquet"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds some cells of two H200s as emulated ranks would have recorded them: no baseline runs there."""
    about, table = read_table(shipped_recordings()["reduction-h200x2"])
    hardware = replace(about.target.hardware, links="emulated")
    places = {text: workload_of(text) for text in pc.unique(table["workload"]).to_pylist()}
    mine = [text for text, place in places.items() if place.tokens in TOKENS and place["width"] == 7168]
    chosen = [
        place in mine and variant not in operator("reduction").baselines
        for place, variant in zip(table["workload"].to_pylist(), table["variant"].to_pylist(), strict=True)
    ]
    path = tmp_path / "emulated.parquet"
    write_table(path, table.filter(chosen), replace(about, target=replace(about.target, hardware=hardware)))
    (tmp_path / "emulated.toml").write_text(CAMPAIGN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def megatune(*arguments: object, code: int = 0) -> Result:
    environment = {"COLUMNS": "200", "MEGATUNE_DB": "emulated.db"}
    found = CliRunner(env=environment).invoke(app, [str(each) for each in arguments])
    assert found.exit_code == code, found.output
    return found


def test_from_a_recording_of_emulated_ranks_to_a_plan_that_serves_nobody(folder: Path) -> None:
    ran = megatune("run", "emulated.toml")
    assert "next: megatune plan --db emulated.db --provenance emulated" in ran.stdout
    assert "some are emulated: ask for them with --provenance" in megatune("plan", code=3).stderr
    report = json.loads(megatune("crossovers", "--provenance", "emulated", "--json").stdout)
    (shape,) = report["shapes"]
    assert [(each["below"], each["above"]) for each in shape["crossovers"]] == [("full_fanout", "two_stage")]
    megatune("plan", "--provenance", "emulated", "--out", "plan.json")
    plan = Plan.load(folder / "plan.json")
    (found,) = plan.operator("reduction").shapes
    assert found.measured_tokens == TOKENS
    assert plan.content.coverage.measurements.keys() == {"emulated"}
    for band in found.bands:
        for point in band.points:
            assert point.provenance == ("emulated",)
            assert band.decision.kind == "config"
            assert {band.decision.variant, point.baseline} == {"full_fanout", "two_stage"}
    assert "saves" in megatune("show", "plan.json").stdout
    for name in ("json", "vllm-allreduce", "sglang", "vllm-config"):
        refused = megatune("export", "plan.json", "--unreviewed", "--to", name, "--out", name, code=2)
        assert "counts emulated figures as evidence" in refused.stderr
        assert not (folder / name).exists()
