"""From a campaign to a reviewed plan and its pages with everything on a server, as on a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from megatune_dashboard.app.frame import source
from megatune_dashboard.app.pages import PAGES
from megatune_dashboard.app.source import Source
from megatune_dashboard.command import app
from megatune_db import queries
from megatune_db import store
from megatune_db.embedded import EmbeddedServer
from megatune_db.errors import DatabaseUnreachableError
from megatune_db.location import locate
from megatune_db.session import open_database
from megatune_planner.plan import Plan

CAMPAIGN = """
name = "small"
tokens = [1, 16]
[[shapes]]
operator = "projection"
n = 2112
k = 7168
[budget]
trials = 8
finalists = 2
[runner]
kind = "replay"
recording = "kimi-k3-h200"
"""


def megatune(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200", "MEGATUNE_DB": ""}).invoke(app, arguments, prog_name="megatune")
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def url(postgres_url: str) -> str:
    """With a password, which the server does not ask for and nobody may see."""
    return postgres_url.replace("postgres@", "postgres:s3cr3t@")


def test_a_campaign_is_run_planned_reviewed_and_shown_on_a_server(
    url: str, show: Callable[..., AppTest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(CAMPAIGN)
    said = []
    plans = {}
    for where in (url, "small.db"):
        said += [megatune("run", "small.toml", "--db", where), megatune("plan", "--db", where, "--name", "small")]
        said += [megatune("status", "--db", where)]
        (campaign,) = json.loads(megatune("status", "--db", where, "--json"))["campaigns"]
        assert campaign["state"] == "finished"
        plans[where] = Plan.load(Path("small.json"))
        Path("small.json").unlink()
    # The same campaign comes to the same plan, wherever its rows are.
    assert _decisions(plans[url]) == _decisions(plans["small.db"])

    # Going on with it measures nothing again.
    assert "small" in megatune("resume", "small", "--db", url)
    with open_database(url, read_only=True) as database, database.session() as session:
        before = queries.table_sizes(session).rows
    with open_database("small.db", read_only=True) as database, database.session() as session:
        assert queries.table_sizes(session).rows == before

    said += [megatune("approve", "small", "--db", url, "--by", "somebody")]
    said += [megatune("export", "small", "--db", url, "--to", "json", "--out", "out", "--by", "somebody")]
    said += [megatune("crossovers", "--db", url)]

    # A backup is a file that can be planned from, and goes back to a server.
    said += [megatune("db", "backup", "--db", url, "--to", "backup.db")]
    assert "is there already" in megatune("db", "backup", "--db", url, "--to", "backup.db", code=2)
    said += [megatune("plan", "--db", "backup.db", "--name", "again")]
    assert _decisions(Plan.load(Path("again.json"))) == _decisions(plans[url])
    assert "is in use already" in megatune("db", "copy", "backup.db", url, code=2)
    said += [megatune("db", "upgrade", "--db", url)]

    for page in PAGES:
        shown = show(url, page.PATH)
        assert not shown.error, (page.PATH, [each.value for each in shown.error])
        said.append(str(shown))
    assert not any("s3cr3t" in each for each in said)
    assert any(str(locate(url)) in each for each in said)
    database = source(url).database()
    assert database is not None
    database.close()


def _decisions(plan: Plan) -> Any:
    """What it says, without when and where it was measured."""
    return [
        (operator.name, shape.shape, [(band.tokens_lo, band.tokens_hi, band.decision) for band in shape.bands])
        for operator in plan.content.operators
        for shape in operator.shapes
    ]


def test_a_copy_on_a_server_is_what_the_file_was(new_postgres: Callable[..., str], tuned: Path, tmp_path: Path) -> None:
    server, back = new_postgres(), tmp_path / "back.db"
    assert "copied to" in megatune("db", "copy", str(tuned), server)
    megatune("db", "copy", server, str(back))
    found = []
    for where in (str(tuned), server, str(back)):
        with open_database(where, read_only=True) as database, database.session() as session:
            rows = queries.campaigns(session)
            ids = [trial.measurement_id for row in rows for trial in queries.trials(session, row.id)]
            found.append((rows, queries.measurements(session, [each for each in ids if each is not None])))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) > 100


def test_pages_see_commits_on_a_server_and_outlive_it(own_server: EmbeddedServer) -> None:
    own_server.execute("CREATE DATABASE tuned")
    where = own_server.url("tuned")
    seen = Source(where)
    assert seen.database() is None, "it has no tables yet"
    times = 0

    def names(session: Any) -> list[str]:
        nonlocal times
        times += 1
        return queries.campaign_names(session)

    with open_database(where) as database:
        with database.session() as session:
            store.put_campaign(session, name="first", file_text="", file_digest="")
        assert seen.read(names) == seen.read(names) == ["first"]
        assert times == 1
        with database.session() as session:
            store.put_campaign(session, name="second", file_text="", file_digest="")
            session.flush()
            assert seen.read(names) == ["first"], "what is not committed is not seen"
        assert seen.read(names) == ["second", "first"]
    own_server.kill()
    with pytest.raises(DatabaseUnreachableError):
        seen.read(names)
    own_server.start()
    assert seen.read(names) == ["second", "first"]
    with seen.writing() as session:
        store.put_campaign(session, name="third", file_text="", file_digest="")
    assert seen.read(names)[0] == "third"
    opened = seen.database()
    assert opened is not None
    opened.close()
