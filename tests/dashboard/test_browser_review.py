"""A plan's way through the pages in a real browser: the difference, the decision, the files, and back."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pictures
import pytest
import review_examples
from pictures import LOOK_MS
from pictures import go
from pictures import settled
from review_examples import MARKUP
from review_examples import Example

from megatune_dashboard import browsing
from megatune_db import queries
from megatune_db.session import open_database

if TYPE_CHECKING:
    from playwright.sync_api import Locator
    from playwright.sync_api import Page

WIDTHS = (1280, 390)


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return review_examples.make(tmp_path / "reviewed.db")


@pytest.fixture
def address(example: Example) -> Iterator[str]:
    with browsing.served(example.path) as found:
        yield found


def press(page: Page, name: str, then: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()
    page.get_by_text(then).first.wait_for()
    settled(page)


def visible_tables(page: Page) -> list[Locator]:
    return [each for each in page.get_by_test_id("stDataFrame").all() if each.is_visible()]


def test_from_the_difference_to_the_roll_back(
    page: Page, example: Example, address: str, tmp_path: Path, screenshots: Path
) -> None:
    page.set_viewport_size({"width": 1280, "height": 1600})
    go(page, f"{address}/plans")
    assert example.draft in page.get_by_text("digest").first.inner_text()
    page.get_by_text("9.17 to 8.23 µs").wait_for()
    page.get_by_text("107 to 118 µs").wait_for()
    # Evidence is one click away.
    before = len(visible_tables(page))
    page.get_by_test_id("stDataFrame").nth(1).scroll_into_view_if_needed()
    box = visible_tables(page)[0].bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 18, box["y"] + 52)
    page.wait_for_function(
        "count => [...document.querySelectorAll('[data-testid=stDataFrame]')]"
        ".filter(each => each.checkVisibility()).length > count",
        arg=before,
        polling=LOOK_MS,
    )
    pictures.picture(page, screenshots / "plan-review.png")

    # The comment is typed, and the click ends the typing.
    page.get_by_role("textbox", name="Comment").fill("faster by a twelfth")
    press(page, "Approve", "approved: it can be exported now")

    go(page, f"{address}/exports?plan={example.draft}")
    page.get_by_text("will be retired").wait_for()
    press(page, "Export 2 files", "is exported for json")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the files").click()
    download.value.save_as(tmp_path / "files.zip")
    pictures.picture(page, screenshots / "exports.png")
    with open_database(example.path, read_only=True) as database, database.session() as session:
        exported = queries.plan_exports(session, example.draft)[0]
    with zipfile.ZipFile(tmp_path / "files.zip") as opened:
        digests = {name: hashlib.sha256(opened.read(name)).hexdigest() for name in opened.namelist()}
    assert digests == exported.files

    go(page, f"{address}/plans?plan={example.draft}")
    page.get_by_role("textbox", name="Comment").fill("slower in serving")
    press(page, "Roll back", f"{example.serving[:12]} serves")
    against = page.get_by_role("combobox", name="Against").first
    assert f"in service: kimi · {example.serving[:12]} · exported" in (against.get_attribute("value") or "")
    pictures.picture(page, screenshots / "rolled-back.png")
    # It survives a reload.
    page.reload()
    page.get_by_text("Approve again").wait_for()
    with open_database(example.path, read_only=True) as database, database.session() as session:
        log = [(row.action.value, row.comment) for row in queries.reviews(session, example.draft)[::-1]]
        serving = queries.plan_in_service(session, example.draft)
    assert log == [
        ("approve", "faster by a twelfth"),
        ("retire", ""),
        ("export", ""),
        ("roll_back", "slower in serving"),
        ("restore", "slower in serving"),
    ]
    assert serving is not None
    assert serving.digest == example.serving


def test_markup_in_names_and_comments_stays_text(page: Page, example: Example, address: str) -> None:
    review_examples.add_strange(example)
    with open_database(example.path, read_only=True) as database, database.session() as session:
        digests = {row.name: row.digest for row in queries.plan_summaries(session)}
    page.set_viewport_size({"width": 1280, "height": 1600})
    alarms: list[str] = []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))  # type: ignore[func-returns-value]
    for path in ("plans", "exports"):
        go(page, f"{address}/{path}?plan={digests[MARKUP]}")
        if path == "exports":
            press(page, "Export 2 files", "is exported for json")
        page.get_by_text("<script>alert(1)</script> **bold**").first.wait_for()
        main = page.get_by_test_id("stMain")
        assert main.locator("a[href*='example.org']").count() == 0
        assert main.locator("strong", has_text="bold").count() == 0
        assert main.locator(".katex").count() == 0
    for digest in ("newer", "torn"):
        go(page, f"{address}/plans?plan={digest}")
        page.get_by_text("This program cannot read the plan").wait_for()
        assert "Traceback" not in page.content()
    assert alarms == []


def test_pages_fit_the_window(page: Page, address: str, screenshots: Path) -> None:
    for path in ("plans", "exports"):
        go(page, f"{address}/{path}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            pictures.in_both_schemes(page, screenshots, path)
