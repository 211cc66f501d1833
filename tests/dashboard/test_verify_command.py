"""``megatune verify`` and ``megatune run --repeat``, from a campaign to what the plan says, on a recording."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import NamedTuple

import pytest
from typer.testing import CliRunner
from typer.testing import Result

from megatune_dashboard.command import app
from megatune_db import queries
from megatune_db.queries import ExportRow
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Target
from megatune_planner.plan import Plan
from megatune_tuner import remeasuring
from megatune_tuner.recording_file import About
from megatune_tuner.recording_file import write_recording

CAMPAIGN = """
name = "small"
tokens = [1, 8, 16, 64]

[[shapes]]
operator = "projection"
n = 1536
k = 7168

[budget]
trials = 6
finalists = 2

[runner]
kind = "replay"
recording = "kimi-k3-h200"
"""


class Made(NamedTuple):
    folder: Path
    db: Path
    plan: Path
    target: Target
    rows: list[ExportRow]


def megatune(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(each) for each in arguments])


def report(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A campaign that was run, and its plan."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "small.toml").write_text(CAMPAIGN)
    db, plan = folder / "small.db", folder / "plan.json"
    assert megatune("run", folder / "small.toml", "--db", db).exit_code == 0
    assert megatune("plan", "--db", db, "--name", "small", "--out", plan).exit_code == 0
    with open_database(db, read_only=True) as database, database.session() as session:
        target = Plan.load(plan).content.target
        rows = list(queries.export_rows(session, target=target.digest, regime=Regime(), provenance=Provenance.REPLAYED))
    return Made(folder, db, plan, target.fingerprint, rows)


@pytest.fixture
def here(made: Made, tmp_path: Path) -> Made:
    """The same, in a place of its own."""
    db = tmp_path / "small.db"
    with open_database(made.db):  # so that what its log holds is in the file
        shutil.copy(made.db, db)
        for end in ("-wal", "-shm"):
            if Path(f"{made.db}{end}").exists():
                shutil.copy(f"{made.db}{end}", f"{db}{end}")
    return made._replace(folder=tmp_path, db=db)


def recorded(
    made: Made,
    name: str,
    change: Callable[[ExportRow], Measurement] | None = None,
    target: Target | None = None,
    regime: Regime | None = None,
) -> Path:
    """What the campaign measured, as a recording, changed where a test wants it."""
    path = made.folder / f"{name}.parquet"
    rows: Iterable[ExportRow] = made.rows
    if change is not None:
        rows = [replace(row, measurement=change(row)) for row in rows]
    about = About(target or made.target, regime or Regime(), "0.1.0", CAMPAIGN, "some", {})
    write_recording(path, rows, about)
    return path


def slower(row: ExportRow, factor: float) -> Measurement:
    found = row.measurement
    if found.median_us is None or found.low_us is None or found.high_us is None:
        return found
    return replace(
        found,
        samples_us=tuple(us * factor for us in found.samples_us),
        median_us=found.median_us * factor,
        low_us=found.low_us * factor,
        high_us=found.high_us * factor,
    )


def test_a_plan_holds_on_what_it_was_made_from(here: Made) -> None:
    result = megatune("verify", here.plan, "--db", here.db, "--recording", "kimi-k3-h200", "--json", "--by", "somebody")
    assert result.exit_code == 0, result.output
    found = report(result)
    assert (found["verdict"], found["provenance"], found["recording"]) == ("holds", "replayed", "kimi-k3-h200")
    assert found["plan"] == Plan.load(here.plan).digest
    assert any(band["ends"] for band in found["bands"])
    with open_database(here.db, read_only=True) as database, database.session() as session:
        (row,) = queries.verifications(session)
        assert (row.verdict, row.who, row.plan) == ("holds", "somebody", found["plan"])
        (target,) = queries.targets(session)
        evidence = [id_ for band in found["bands"] for end in band["ends"] for id_ in end["evidence"]]
        kept = queries.measurements(session, evidence)
        assert {measurement.stage.value for measurement in kept.values()} == {"verify"}
    assert target.digest == here.target.digest
    text = megatune("verify", here.plan, "--db", here.db, "--recording", "kimi-k3-h200")
    assert "plan small: holds" in text.stdout
    # The campaign was short: the recording knows of better choices between the tokens that it measured.
    assert "where nothing was measured before" in " ".join(text.stdout.split())
    assert "replayed from kimi-k3-h200" in text.stdout.replace("\n", " ")
    # The plan that the rows lead to is the same, and nothing warns.
    again = megatune("plan", "--db", here.db, "--name", "small", "--out", here.folder / "again.json")
    assert again.exit_code == 0
    assert Plan.load(here.folder / "again.json").digest == found["plan"]


def test_drift_is_an_exit_code_and_a_warning_wherever_the_plan_is_shown(here: Made) -> None:
    plan = Plan.load(here.plan)
    shape = plan.operator("projection").shapes[0]
    decision = next(band.decision for band in shape.bands if band.decision.kind == "config")
    assert decision.kind == "config"
    drifted = recorded(
        here, "drifted", lambda row: slower(row, 2.0 if row.measurement.config == decision.config else 1.0)
    )
    result = megatune("verify", here.plan, "--db", here.db, "--recording", drifted, "--json")
    assert result.exit_code == 4, result.output
    found = report(result)
    assert found["verdict"] == "drifted"
    bad = [band for band in found["bands"] if band["verdict"] == "drifted"]
    assert bad
    assert all(decision.variant in band["decision"] or "stock" not in band["decision"] for band in bad)
    for command in (
        ("show", here.plan),
        ("diff", here.plan, here.plan),
        ("export", here.plan, "--to", "json", "--out", here.folder / "out", "--unreviewed"),
    ):
        shown = megatune(*command, "--db", here.db)
        assert "it has drifted" in shown.stderr, (command, shown.output)


def test_a_changed_toolchain_without_a_verification_is_a_warning(here: Made) -> None:
    newer = replace(here.target, toolchain=replace(here.target.toolchain, driver="999.1"))
    file = here.folder / "newer.toml"
    recording = recorded(here, "newer", target=newer)
    file.write_text(CAMPAIGN.replace('"small"', '"newer"').replace("kimi-k3-h200", str(recording)))
    assert "another toolchain" not in megatune("show", here.plan, "--db", here.db).stderr
    assert megatune("run", file, "--db", here.db).exit_code == 0
    warned = megatune("show", here.plan, "--db", here.db).stderr
    assert f"driver {here.target.toolchain.driver} to 999.1" in warned
    # What is replayed says nothing of the machine as it is now.
    replayed = megatune("verify", here.plan, "--db", here.db, "--recording", recording, "--json")
    assert report(replayed)["changed"] == {"driver": [here.target.toolchain.driver, "999.1"]}
    assert "another toolchain" in megatune("show", here.plan, "--db", here.db).stderr
    told = megatune("verify", here.plan, "--db", here.db, "--recording", recording).stdout
    assert "stock serves here until it is planned again" in " ".join(told.split())


def test_what_cannot_be_verified_is_one_line(here: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(here.target, hardware=replace(here.target.hardware, gpu="NVIDIA B300", arch="sm_103a", sms=148))
    warm = recorded(here, "warm", lambda row: replace(row.measurement, regime=Regime("warm")), regime=Regime("warm"))
    for arguments, code, text in (
        (("--recording", recorded(here, "other", target=other)), 2, "verify it where it serves"),
        (("--recording", warm), 2, "was recorded warm-graph"),
        (("--recording", "nothing-such"), 2, "there is no recording 'nothing-such'"),
        (("--recording", "kimi-k3-h200", "--margin", "0"), 2, "--margin is a share above 0"),
        (("--recording", "kimi-k3-h200", "--by", " "), 2, "--by is somebody's name"),
        (("--recording", "reduction-h200x2"), 2, "2 ranks over"),
    ):
        result = megatune("verify", here.plan, "--db", here.db, *arguments)
        assert result.exit_code == code, result.output
        (line,) = result.stderr.splitlines()
        assert text in line

    def nothing(*arguments: object, **options: object) -> None:
        raise MegatuneError("no GPU 0: this machine shows 0")

    monkeypatch.setattr(remeasuring, "equipment", nothing)
    result = megatune("verify", here.plan, "--db", here.db, "--json")
    assert result.exit_code == 3
    assert report(result)["verdict"] == "cannot tell"
    assert "no GPU 0" in report(result)["reason"]
    assert megatune("verify", here.folder / "none.json", "--db", here.db).exit_code == 2


def test_a_campaign_that_is_run_again_says_what_is_not_repeatable(here: Made) -> None:
    file = here.folder / "small.toml"
    file.write_text(CAMPAIGN)
    result = megatune("run", file, "--db", here.db, "--repeat", 2, "--json")
    assert result.exit_code == 0, result.output
    found = report(result)
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2]
    assert found["decisions"] == 8
    assert found["flip_rate"] == len(found["flips"]) / 8
    assert found["regret"] >= 0
    assert min(run["regret"] for run in found["runs"]) >= 0
    assert [Path(path).exists() for path in found["databases"]] == [True, True]
    # Run again it goes on, which measures no search again, and comes to the same.
    again = report(megatune("run", file, "--db", here.db, "--repeat", 2, "--json"))
    assert again["measured"] == 0
    assert (again["flips"], again["regret"]) == (found["flips"], found["regret"])
    assert megatune("plan", "--db", here.db, "--name", "small", "--out", here.folder / "said.json").exit_code == 0
    said = Plan.load(here.folder / "said.json").content.repeatability
    assert said is not None
    assert said.seeds == (0, 1, 2)
    assert said.flips == len(found["flips"])
    assert bool(said.bands) == bool(found["flips_beyond_ties"])
    shown = megatune("show", here.folder / "said.json", "--db", here.db)
    assert ("not repeatable" in shown.stderr) == bool(said.bands)
    assert "over 2 repeats" in " ".join(shown.stdout.split())
    assert "decisions flip" in megatune("run", file, "--db", here.db, "--repeat", 1).stdout
