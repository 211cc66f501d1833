"""Signing in with a provider, in a real browser: who sees what, and who decides."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import identity_provider
import pytest
from identity_provider import Provider
from pictures import go
from pictures import settled

from megatune_dashboard import browsing

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page

SECRET = "nobody-may-ever-see-this-secret-of-the-client"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with identity_provider.provider() as found:
        yield found


@pytest.fixture(scope="module")
def address(
    tuned_once: Path, provider: Provider, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Pages that need signing in, over a database with a campaign that could go on."""
    folder = tmp_path_factory.mktemp("signed-in")
    tuned = folder / "tuned.db"
    shutil.copy(tuned_once, tuned)
    with closing(sqlite3.connect(tuned)) as opened, opened:
        opened.execute("UPDATE megatune_campaigns SET state = 'stopped'")
    port = browsing.free_port()
    file = folder / "sign-in.toml"
    file.write_text(
        f"""
        [auth]
        redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
        cookie_secret = "{SECRET}"
        client_id = "{identity_provider.CLIENT}"
        client_secret = "{SECRET}"
        server_metadata_url = "{provider.address}/.well-known/openid-configuration"
        [roles]
        reviewers = ["rea@example.org"]
        viewers = ["*@example.org"]
        """
    )
    said = folder / "said.log"
    with browsing.served(tuned, ["--sign-in", str(file)], port=port, said=said) as found:
        yield found
    assert SECRET not in said.read_text("utf-8", errors="replace")


def sign_in(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_text("Sign in to see campaigns, plans and exports.").wait_for()
    links = [each.inner_text() for each in page.get_by_role("link").all()]
    assert not {"Explore", "Campaigns", "campaigns", "main"} & set(links), "the navigation is for those who may look"
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
    settled(page)


@pytest.mark.parametrize(("who", "role"), [("rea@example.org", "reviewer"), ("vic@example.org", "viewer")])
def test_a_reviewer_decides_and_a_viewer_looks(
    who: str, role: str, page: Page, address: str, provider: Provider
) -> None:
    provider.claims = {"email": who, "email_verified": True}
    sign_in(page, address)
    # Cut by a character without width, so that it is no link.
    page.get_by_text(f"{who}, {role}".replace("@", "\u2060@")).wait_for()
    assert page.get_by_role("link", name="example.org").count() == 0
    page.get_by_text("Nobody measures into this database now.").wait_for()
    page.get_by_text("How it searched").wait_for()
    assert page.get_by_role("button", name="Go on").count() == (role == "reviewer")
    assert SECRET not in page.content()
    if role == "viewer":
        for path in ("explore", "search", "plans", "exports", "health"):
            go(page, f"{address}/{path}")
            assert SECRET not in page.content()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Sign in").wait_for()


def test_nobody_else_sees_anything(page: Page, address: str, provider: Provider) -> None:
    strangers: list[dict[str, object]] = [
        {"email": "someone@example.com", "email_verified": True},
        {"email": "rea@example.org", "email_verified": False},
        {},
    ]
    for claims in strangers:
        provider.claims = claims
        page.context.clear_cookies()
        sign_in(page, address)
        page.get_by_text("have no role here").wait_for()
        assert "projections" not in page.content()
        page.goto(f"{address}/explore")
        page.get_by_text("have no role here").wait_for()
        assert page.get_by_role("combobox").count() == 0
