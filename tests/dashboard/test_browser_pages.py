"""The pages in a real browser: from nothing, past a campaign that is watched while it runs, to its samples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import campaign_examples
import pictures
from pictures import LOOK_MS
from pictures import go
from pictures import settled

from megatune_dashboard import browsing
from megatune_db import queries
from megatune_db.records import CampaignState
from megatune_db.session import open_database

if TYPE_CHECKING:
    from playwright.sync_api import Page

CROSSOVER = re.compile("crossover (of )?full_fanout")
WINDOWS = ((1280, 900), (390, 844))
PICTURES = {
    "campaigns": "",
    "explore": "explore?operator=reduction&predicted=true",
    "explore-beside": "explore?operator=projection&beside=campaign+projections&part=Bandwidth",
    "explore-parameter": "explore?operator=projection&part=One+parameter&variant=mma",
    "search": "search?campaign=projections&tokens=16",
    "search-parameters": "search?campaign=projections&tokens=16&part=Parameters",
    "search-coverage": "search?campaign=projections&tokens=16&part=Coverage",
    "search-why": "search?campaign=projections&tokens=16&part=Why+this+config",
    "plans-none": "plans",
    "exports-none": "exports",
    "health": "health",
}


def trials(page: Page) -> int:
    """Of the campaign that runs, as the page says it."""
    text = page.get_by_text(re.compile(r"\d+ trials, about")).first.inner_text()
    return int(text.split()[0])


def test_from_nothing_to_a_campaign_that_stops(page: Page, tmp_path: Path, screenshots: Path) -> None:
    path = tmp_path / "journey.db"
    with browsing.served(path) as address:
        go(page, address)
        page.get_by_text("Nothing is measured yet").wait_for()
        page.get_by_text("megatune quickstart --db").wait_for()
        page.screenshot(path=screenshots / "empty.png")
        process = campaign_examples.start_long(path)
        try:
            # Nobody touches the page: it shows the campaign, and that it moves, by itself.
            page.get_by_role("heading", name="Campaigns").wait_for()
            page.get_by_text(f"Process {process.pid} measures into this database.").wait_for()
            before = trials(page)
            page.wait_for_function(
                "before => parseInt(document.body.innerText.match(/(\\d+) trials, about/)[1]) > before",
                arg=before,
                polling=LOOK_MS,
            )
            page.screenshot(path=screenshots / "running.png")
            page.get_by_role("button", name="Stop", exact=True).click()
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
        page.get_by_text("Nobody measures into this database now.").wait_for()
        page.get_by_role("button", name="Go on", exact=True).click()
        page.get_by_text(re.compile("Process .* measures into this database")).wait_for(timeout=60_000)
        page.get_by_role("button", name="Stop", exact=True).click()
        campaign_examples.wait_for(path, CampaignState.STOPPED)
        page.get_by_role("button", name="Go on", exact=True).wait_for()
    with open_database(path, read_only=True) as database, database.session() as session:
        log = queries.campaign_log(session)
    assert [(row.campaign, row.action.value) for row in log] == [("long", each) for each in ("stop", "resume", "stop")]
    assert len({row.who for row in log}) == 1


def test_a_filter_survives_a_reload_and_a_click_shows_samples(page: Page, served_tuned: str) -> None:
    go(page, f"{served_tuned}/explore")
    page.get_by_role("combobox", name="Operator").click()
    page.get_by_role("option", name="reduction").click()
    page.get_by_text(CROSSOVER).first.wait_for()
    settled(page)
    assert "operator=reduction" in page.url
    page.reload()
    page.get_by_role("heading", level=1).wait_for()
    page.get_by_text(CROSSOVER).first.wait_for()
    assert page.get_by_role("combobox", name="Operator").input_value() == "reduction"

    before = page.get_by_text("the median of").first.inner_text()
    # The last point of the last curve: the first is shown without a click.
    points = page.locator(".js-plotly-plot").first.locator(".scatterlayer .trace .points path")
    points.last.wait_for()
    box = points.nth(points.count() - 7).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("before => !document.body.innerText.includes(before)", arg=before, polling=LOOK_MS)
    assert "measurement=" in page.url
    chosen = page.url
    page.reload()
    page.get_by_text("the median of").first.wait_for()
    settled(page)
    assert page.url == chosen


def test_every_table_downloads(page: Page, served_tuned: str, tmp_path: Path) -> None:
    for path in ("", "explore?part=All+points", "search?part=Coverage"):
        go(page, f"{served_tuned}/{path}")
        page.get_by_test_id("stDataFrame").first.wait_for()
        settled(page)
        for button in page.get_by_role("button", name="Download CSV").all():
            with page.expect_download() as download:
                button.click()
            download.value.save_as(tmp_path / "table.csv")
            assert len((tmp_path / "table.csv").read_text("utf-8").splitlines()) > 1
        tables = page.get_by_test_id("stDataFrame").count()
        assert page.get_by_role("button", name="Download CSV").count() == tables > 0


def test_every_page_fits_its_window_and_asks_no_other_machine(page: Page, served_tuned: str, screenshots: Path) -> None:
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name, path in PICTURES.items():
        go(page, f"{served_tuned}/{path}")
        assert page.get_by_text("fault of the program").count() == 0
        for width, height in WINDOWS:
            page.set_viewport_size({"width": width, "height": height})
            pictures.in_both_schemes(page, screenshots, name)
    assert not problems
    assert len(asked) > len(PICTURES)
    assert not [url for url in asked if not url.startswith((served_tuned, "data:", "blob:"))]


def test_a_running_campaign_is_never_kept_waiting(page: Page, tuned: Path) -> None:
    with browsing.served(tuned) as address:
        go(page, f"{address}/explore")
        with open_database(tuned) as database, database.writer_lock(), database.session() as session:
            # Whoever measures holds the lock and a transaction: the pages are read all the same.
            session.connection().exec_driver_sql("UPDATE megatune_campaigns SET wall_s = 1")
            for path in ("", "explore", "search", "health"):
                go(page, f"{address}/{path}")
                assert page.get_by_text("fault of the program").count() == 0
