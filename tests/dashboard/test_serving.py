"""Who may look, what a sign-in file needs, and text that others wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatune_dashboard import serving
from megatune_dashboard.app.people import Role
from megatune_dashboard.app.people import Roles
from megatune_dashboard.app.people import local_person
from megatune_dashboard.app.people import signed_in
from megatune_dashboard.app.tables import csv_text
from megatune_dashboard.app.text import hover
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.text import shortened
from megatune_dashboard.command import app
from megatune_db.location import locate

SECRET = "a-secret-of-the-client"
SIGN_IN = f"""
[auth]
redirect_uri = "https://tune.example.org/oauth2callback"
cookie_secret = "{SECRET}"
client_id = "megatune"
client_secret = "{SECRET}"
server_metadata_url = "https://id.example.org/.well-known/openid-configuration"

[roles]
reviewers = ["rea@example.org"]
viewers = ["*@example.org"]
"""
ROLES = Roles(("rea@example.org",), ("*@example.org",))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What was to be served, instead of serving it."""
    found: list[dict[str, object]] = []
    monkeypatch.setattr(serving, "serve", lambda db, **options: found.append({"db": db, **options}))
    return found


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["dashboard", *arguments], prog_name="megatune")
    return result.exit_code, result.stderr


def test_it_listens_to_this_machine_alone(served: list[dict[str, object]], tmp_path: Path) -> None:
    assert run("--db", str(tmp_path / "none.db")) == (0, "")
    assert served == [{"db": locate(tmp_path / "none.db"), "host": "127.0.0.1", "port": 8501, "sign_in": None}]


def test_others_have_to_sign_in(served: list[dict[str, object]], tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "tune.example.org"):
        code, said = run("--host", host)
        assert code == 2
        assert "give --sign-in" in said
    assert not served
    for host in ("localhost", "::1", "127.0.0.2"):
        assert run("--host", host)[0] == 0
    file = tmp_path / "sign-in.toml"
    file.write_text(SIGN_IN)
    assert run("--host", "0.0.0.0", "--sign-in", str(file)) == (0, "")
    assert served[-1]["sign_in"] == file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[auth", "is not TOML"),
        ("[auth]", "needs the sections [auth] and [roles]"),
        (SIGN_IN.replace("client_id", "client_name"), "lacks client_id in [auth]"),
        (SIGN_IN.replace("cookie_secret", "cookies"), "lacks cookie_secret in [auth]"),
        (SIGN_IN.replace("\nviewers", "\nadmins"), "has 'admins' in [roles]; allowed: reviewers, viewers"),
        (SIGN_IN.replace('["*@example.org"]', '"*@example.org"'), "has to be a list of addresses"),
    ],
)
def test_a_sign_in_file_says_what_it_lacks_and_no_secret(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "sign-in.toml"
    file.write_text(text)
    code, said = run("--sign-in", str(file))
    assert code == 2
    assert problem in said
    assert len(said.splitlines()) == 1
    assert SECRET not in said


def test_a_provider_may_have_a_section_of_its_own(served: list[dict[str, object]], tmp_path: Path) -> None:
    file = tmp_path / "sign-in.toml"
    file.write_text(SIGN_IN.replace("client_id", "[auth.corp]\nclient_id"))
    assert run("--sign-in", str(file)) == (0, "")


def test_without_a_sign_in_file_there_is_one_local_user() -> None:
    person = local_person()
    assert person.local
    assert person.reviews


def test_roles() -> None:
    rea = signed_in({"email": "Rea@Example.org", "email_verified": True}, ROLES)
    vic = signed_in({"email": "vic@example.org"}, ROLES)
    assert rea is not None
    assert vic is not None
    assert (rea.role, vic.role) == (Role.REVIEWER, Role.VIEWER)
    assert not rea.local
    assert not vic.reviews


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "someone@example.com"},
        {"email": "rea@example.org", "email_verified": False},
        {"email": ""},
        {"email": None},
        {"name": "rea@example.org"},
        {},
    ],
)
def test_nobody_else_sees_anything(claims: dict[str, object]) -> None:
    assert signed_in(claims, ROLES) is None
    assert signed_in(claims, Roles()) is None


def test_text_of_others_is_no_markup() -> None:
    assert plain("a*b_c [x](y) <b>") == "a\\*b\\_c \\[x\\]\\(y\\) \\<b\\>"
    assert hover("<b>&</b>") == "&lt;b&gt;&amp;&lt;/b&gt;"
    assert shortened("two\nlines\t of   it") == "two lines of it"
    assert len(shortened("x" * 5000)) == 300


def test_a_download_holds_nothing_that_a_spreadsheet_would_compute() -> None:
    rows = [{"name": "=HYPERLINK(0)", "us": float("nan"), "n": -1}, {"name": " +1", "extra": "a,b"}]
    assert csv_text(rows).splitlines() == ["name,us,n,extra", "'=HYPERLINK(0),,-1,", '\' +1,,,"a,b"']
