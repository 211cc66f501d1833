"""The commands ``run``, ``record`` and ``status``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_recordings import record_toy
from toy_recordings import workloads
from typer.testing import CliRunner

from megatune_db.errors import DatabaseMissingError
from megatune_kernels.errors import MegatuneError
from megatune_tuner import commands
from megatune_tuner.commands import app
from megatune_tuner.recordings import read_recording

HERE = Path(__file__).parent
CELLS = workloads(shapes=[(1536, 7168)], tokens=(1, 4))

FINALS = 5 + 6
"""Of a cell the four fastest and the baseline; in one the four are of one variant, and the other's best is a sixth."""

CAMPAIGN = """
name = "toy"
tokens = [1, 4]
[[shapes]]
operator = "toy"
n = 1536
k = 7168
[budget]
trials = 12
[runner]
kind = "replay"
recording = "toy.parquet"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record_toy(tmp_path / "toy.parquet", CELLS)
    (tmp_path / "toy.toml").write_text(CAMPAIGN)
    return tmp_path


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Any:
    """What the command printed; what it raises comes through, as it does to the command that composes it."""
    found = CliRunner(env={"COLUMNS": "200", **(env or {})}).invoke(app, list(map(str, arguments)))
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_a_campaign_from_a_file(folder: Path) -> None:
    found = run("run", folder / "toy.toml", "--db", folder / "toy.db")
    assert found.exit_code == 0
    assert found.stdout.count("k=7168,n=1536") == 1, "two tokens of one shape"
    assert "routing" not in found.stdout
    assert "toy: finished, 2 workloads on Toy GPU" in found.stdout
    assert "times as fast as the baselines" in found.stdout
    assert f"measured now: 26 and {FINALS} finalists; in all: {26 + FINALS} ok; " in found.stdout
    assert f"next: megatune plan --db {folder / 'toy.db'}" in found.stdout


def test_a_campaign_as_json(folder: Path) -> None:
    found = run("run", folder / "toy.toml", "--json", env={"MEGATUNE_DB": str(folder / "toy.db")})
    report = json.loads(found.stdout)
    assert (report["campaign"], report["state"], report["provenance"]) == ("toy", "finished", "replayed")
    assert (report["measured"], report["finalists"]) == (2 * 13, FINALS)
    assert report["statuses"] == {"ok": 2 * 13 + FINALS}
    assert report["speedup"] > 1
    assert [row["tokens"] for row in report["outcomes"]] == [1, 4]
    for row in report["outcomes"]:
        assert row["stage"] == "final"
        assert row["routing"] == "none"
        assert row["baseline"] == "stock"
        assert row["best_us"] < row["baseline_us"]


def test_recording_from_a_recording(folder: Path) -> None:
    (folder / "toy.toml").write_text(CAMPAIGN + "[record]\nsample = 10\n")
    out = folder / "out" / "small.parquet"
    found = run("record", folder / "toy.toml", "--out", out, "--db", folder / "toy.db")
    assert found.exit_code == 0
    assert "toy: 2 of 2 cells complete on Toy GPU" in found.stdout
    assert f"measurements written to {out}" in found.stdout
    assert re.search(rf"^measured now: (\d+) \(\1 ok\) and {FINALS} finalists; \d+ s$", found.stdout, re.MULTILINE)
    recorded = read_recording(out)
    assert 2 * 11 <= sum(len(recorded.configs(cell)) for cell in CELLS) <= 2 * 13
    assert recorded.about.facts["copy_bytes_a_us"] == 4e6
    again = json.loads(run("record", folder / "toy.toml", "--out", out, "--db", folder / "toy.db", "--json").stdout)
    assert (again["measured"], again["finalists"], again["complete"], again["file"]) == (0, 0, 2, str(out))
    text = run("record", folder / "toy.toml", "--out", out, "--db", folder / "toy.db").stdout
    assert re.search(r"^measured now: 0; \d+ s$", text, re.MULTILINE)


def test_status(folder: Path) -> None:
    database = folder / "toy.db"
    with pytest.raises(DatabaseMissingError):
        run("status", "--db", database)
    run("run", folder / "toy.toml", "--db", database)
    table = run("status", "--db", database).stdout
    assert "toy" in table
    assert "finished" in table
    assert f"{26 + FINALS} ok" in table
    assert "%" not in table
    (row,) = json.loads(run("status", "--db", database, "--json").stdout)["campaigns"]
    assert (row["campaign"], row["state"], row["workloads"]) == ("toy", "finished", 2)
    assert row["trials"] == {"done": 26 + FINALS}
    assert row["statuses"] == {"ok": 26 + FINALS}
    assert row["budget"] == {"trials": 12, "finalists": 4}
    assert row["finished_at"] is not None


def test_status_of_an_empty_database(folder: Path) -> None:
    from megatune_db.session import open_database

    open_database(folder / "toy.db").close()
    assert "holds no campaign yet: megatune run CAMPAIGN.toml" in run("status", "--db", folder / "toy.db").stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[1, 4]", "[1, 6]", "recording: toy has no toy k=7168,n=1536 tokens=6; recorded tokens: 1, 4"),
        ("n = 1536", "n = 8", "toy has no toy k=7168,n=8 tokens=1 and 1 more; recorded shapes: k=7168,n=1536"),
        (
            "[[shapes]]",
            "regime.weights = 'warm'\n[[shapes]]",
            "regime: toy was recorded cold-graph; a replay has to say",
        ),
        ("toy.parquet", "no.parquet", "there is no recording"),
        ("[[shapes]]", "variants = ['smit']\n[[shapes]]", "variants: unknown variant 'smit', did you mean 'simt'?"),
        ("[[shapes]]", "space.simt.block = [65]\n[[shapes]]", "space.simt.block: 65 is no value; allowed: 32, 64"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(folder: Path, old: str, new: str, message: str) -> None:
    (folder / "toy.toml").write_text(CAMPAIGN.replace(old, new))
    with pytest.raises(MegatuneError) as caught:
        run("run", folder / "toy.toml", "--db", folder / "toy.db")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(MegatuneError):
        run("record", folder / "toy.toml", "--out", folder / "out.parquet", "--db", folder / "toy.db")
    assert not (folder / "toy.db").exists()


def test_without_a_gpu_it_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "toy.toml").write_text(CAMPAIGN.partition("[runner]")[0])
    monkeypatch.setattr("megatune_tuner.runners.processes.find_spec", lambda name: None)
    with pytest.raises(MegatuneError, match=r"torch is not installed: pip install 'megatune\[gpu\]'"):
        run("run", folder / "toy.toml", "--db", folder / "toy.db")
    assert not (folder / "toy.db").exists()


def test_a_place_where_no_recording_can_be_written_is_refused_before_measuring(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "sealed" / "deeper" / "out.parquet"
    (folder / "sealed").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder / "sealed" and allowed(path, mode))
    with pytest.raises(MegatuneError, match=r"cannot write recording .*out.parquet: .*sealed cannot be written to"):
        run("record", folder / "toy.toml", "--out", out, "--db", folder / "toy.db")
    assert not (folder / "toy.db").exists()


def test_a_replay_imports_neither_torch_nor_the_dsl(folder: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from types import SimpleNamespace
import megatune_tuner
import megatune_tuner.commands
assert "optuna" not in sys.modules and "sqlalchemy" not in sys.modules
from megatune_tuner.campaign_file import load_campaign
from megatune_tuner.execution import run_file
summary = run_file(load_campaign("{folder / "toy.toml"}"), Path("{folder / "toy.db"}"))
assert summary.measured == 26, summary
print(*sorted({{"torch", "cutlass", "cuda", "rich", "streamlit", "scipy"}} & sys.modules.keys()))
"""
    plugins = os.pathsep.join([str(HERE), str(HERE / "plugin"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": plugins},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")


def test_going_on_by_name_measures_what_is_missing(folder: Path) -> None:
    database = folder / "toy.db"
    small = folder / "small.toml"
    small.write_text(CAMPAIGN.replace("trials = 12", "trials = 5"))
    run("run", small, "--db", database)
    first = json.loads(run("resume", "toy", "--db", database, "--json").stdout)
    assert (first["campaign"], first["measured"]) == ("toy", 0)
    (folder / "toy.toml").unlink()
    assert "toy: finished" in run("resume", "toy", "--db", database).stdout


def test_going_on_with_a_campaign_that_is_not_there_names_those_that_are(folder: Path) -> None:
    run("run", folder / "toy.toml", "--db", folder / "toy.db")
    with pytest.raises(MegatuneError, match="no campaign 'toys'; it has toy"):
        run("resume", "toys", "--db", folder / "toy.db")


def test_routings_of_a_shape_are_told_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")

    def row(routing: str, tokens: int) -> SimpleNamespace:
        figures = {"variant": "simt", "best_us": 5.0, "baseline": "stock", "baseline_us": 10.0}
        return SimpleNamespace(operator="experts", shape="width=384", routing=routing, tokens=tokens, **figures)

    summary = SimpleNamespace(
        outcomes=[row(routing, tokens) for routing in ("balanced", "same") for tokens in (1, 2)],
        **dict.fromkeys(("name", "state", "target"), "toy"),
        **dict.fromkeys(("workloads", "measured", "finals", "reused"), 4),
        **{"speedup": 2.0, "statuses": {}, "wall_s": 1.0, "measuring_s": 0.0},
    )
    commands._print_run(summary)  # type: ignore[arg-type]
    lines = [line.split("│")[1:5] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["experts", "width=384", "balanced", "1"],
        ["", "", "", "2"],
        ["", "", "same", "1"],
        ["", "", "", "2"],
    ]
