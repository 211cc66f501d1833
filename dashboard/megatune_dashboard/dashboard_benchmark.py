"""Benchmark ``dashboard``: how long a person waits for its pages, on a large made-up database.

In a headless Chromium where there is one, from the click to what the browser has painted. Without a browser the page's
script alone is timed, which leaves out what the browser does, and the figures say so.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_dashboard import made_up
from megatune_dashboard.browsing import browser
from megatune_dashboard.browsing import missing
from megatune_dashboard.browsing import served
from megatune_dashboard.browsing import settled
from megatune_db import queries
from megatune_db import store
from megatune_db.session import open_database
from megatune_kernels.figures import Benchmark
from megatune_kernels.figures import Figure

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page

MEASUREMENTS = 1_150_000
"""Asked for; not every space is that large, so that about a million come of it."""
TRIALS = 100_000
FIRST_GOAL_S = 2.0
INTERACTION_GOAL_S = 1.0
COMMIT_EVERY_S = 0.1
LOOKING_S = 3
"""Seconds from the first page to the first click."""
PAGES = ("explore", "search", "plans", "exports", "health")
"""By path; the first page is that of campaigns."""

Step = tuple[str, Callable[["Page"], None]]
"""What is done, in words, and how."""


def figures() -> list[Figure]:
    """Of a database that is made for it, which takes a minute or two."""
    with tempfile.TemporaryDirectory(prefix="megatune-bench-") as folder:
        path = Path(folder) / "large.db"
        measurements, trials = make_database(path)
        how = (
            f"made-up database of {trials} trials and {measurements} measurements, {path.stat().st_size / 1e6:.0f} MB; "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        )
        lacking = missing()
        if lacking:
            return _without_browser(path, how + f"the page's script alone, because {lacking}; ")
        with browser() as opened:
            return with_browser(opened, path, how + "headless Chromium, from the click to what it painted; ")


def make_database(path: Path, measurements: int = MEASUREMENTS, trials: int = TRIALS) -> tuple[int, int]:
    """Make the database, with a plan in it, and return how many measurements and trials it has."""
    from megatune_planner.drafting import draft_plan
    from megatune_planner.drafting import keep_draft

    with open_database(path) as database:
        with database.session() as session:
            made = made_up.fill(session, measurements=measurements, trials=trials)
        with database.session() as session:
            for name in ("made-up", "made-up again"):
                plan = draft_plan(
                    session, name=name, target=made_up.synthetic_target("1.0").digest, only_operators=["projection"]
                )
                keep_draft(session, plan)
    return made


def with_browser(opened: Browser, path: Path, how: str, steps: Sequence[Step] | None = None) -> list[Figure]:
    """Walk the pages twice: in peace, and while somebody commits.

    :param steps: of the second walk; None: all of them.
    """
    with served(path) as address:
        page = _page(opened)
        first = _timed(partial(_open_first, page, address))
        _look(page)
        quiet = _slowest(_walk(page, walk()))
        page.close()
        page = _page(opened)
        with _commits(path):
            _open_first(page, address)
            _look(page)
            busy = _slowest(_walk(page, walk() if steps is None else steps))
    return [
        _figure("first page", first, FIRST_GOAL_S, how + "a new server, a browser that has cached nothing"),
        _figure(
            "slowest interaction",
            quiet[1],
            INTERACTION_GOAL_S,
            f"{how}of {len(walk())}, {LOOKING_S} s after the first page: {quiet[0]}",
        ),
        _figure(
            "slowest interaction while somebody commits",
            busy[1],
            INTERACTION_GOAL_S,
            f"{how}a commit every {COMMIT_EVERY_S} s, so that no answer is kept; of {len(walk())}: {busy[0]}",
        ),
    ]


def _page(opened: Browser) -> Page:
    page = opened.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto("about:blank")
    return page


def _walk(page: Page, steps: Iterable[Step]) -> list[tuple[str, float]]:
    """What is done, in words, and how many seconds it takes."""
    return [(what, _timed(partial(_do, page, do))) for what, do in steps]


def _open_first(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_function("document.querySelector('[data-testid=stMetric]')")
    settled(page)


def _look(page: Page) -> None:
    """Nobody clicks within the first seconds; the page loads what charts need meanwhile."""
    page.wait_for_timeout(LOOKING_S * 1000)
    page.wait_for_selector('[data-testid="stPlotlyChart"]')
    settled(page)


def _do(page: Page, do: Callable[[Page], None]) -> None:
    do(page)
    # A run that a click asks for begins within some milliseconds: until then the last one's state is still shown.
    page.wait_for_timeout(50)
    settled(page)


def walk() -> list[Step]:
    """What people do most, each page and each kind of chart once."""
    return [
        ("open Explore", _navigate("Explore")),
        ("another shape", _choose("Shape", 3)),
        ("another operator", _choose("Operator", 1)),
        ("a world of 8", _choose("Shape", 1)),
        ("what the model predicts", lambda page: page.get_by_text("Show what the latency model predicts").click()),
        ("a second target beside it", _choose("Beside it", 1)),
        ("bandwidth", _part("Bandwidth")),
        ("one parameter", _part("One parameter")),
        ("another parameter", _choose("Parameter", 1)),
        ("samples", _part("Samples")),
        ("samples of another measurement", _choose("Samples of", 2)),
        ("open Search", _navigate("Search")),
        ("another shape of a search", _choose("Shape", 5)),
        ("other tokens", _choose("Tokens", 4)),
        ("parameters of a search", _part("Parameters")),
        ("coverage of a space", _part("Coverage")),
        ("failures of a search", _part("Failures")),
        ("why this config", _part("Why this config")),
        ("open Plan review", _navigate("Plan review")),
        ("open Exports", _navigate("Exports")),
        ("open Health", _navigate("Health")),
        ("open Campaigns", _navigate("Campaigns")),
        ("another campaign", _choose("Campaign", 1)),
    ]


def _navigate(title: str) -> Callable[[Page], None]:
    def do(page: Page) -> None:
        page.get_by_role("link", name=title).first.click()
        page.wait_for_function("title => document.querySelector('h1')?.innerText.includes(title)", arg=title)

    return do


def _choose(label: str, place: int) -> Callable[[Page], None]:
    def do(page: Page) -> None:
        page.get_by_role("combobox", name=label).last.click()
        page.get_by_role("option").nth(place).click()

    return do


def _part(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("radio", name=name, exact=True).click()


@contextmanager
def _commits(path: Path) -> Iterator[None]:
    """Somebody who commits all the time, as a campaign does."""
    done = threading.Event()

    def commit() -> None:
        with open_database(path) as database:
            with database.session() as session:
                row = queries.campaigns(session)[0]
            spent = row.wall_s
            while not done.wait(COMMIT_EVERY_S):
                spent += COMMIT_EVERY_S
                with database.session() as session:
                    store.set_campaign(session, row.id, wall_s=spent)

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def _without_browser(path: Path, how: str) -> list[Figure]:
    from streamlit.testing.v1 import AppTest

    from megatune_dashboard.app import frame
    from megatune_dashboard.app.warm import warm

    warm()
    before = os.environ.get(frame.DATABASE)
    os.environ[frame.DATABASE] = str(path)
    try:
        times = []
        for name in ("campaigns", *PAGES):
            script = f"from megatune_dashboard.app.frame import show\nshow({name!r})"
            times.append((f"open {name}", _timed(partial(AppTest.from_string(script, default_timeout=60).run))))
    finally:
        os.environ.pop(frame.DATABASE)
        if before is not None:
            os.environ[frame.DATABASE] = before
    slowest = _slowest(times[1:])
    return [
        _figure("first page", times[0][1], FIRST_GOAL_S, how + "nothing cached"),
        _figure("slowest interaction", slowest[1], INTERACTION_GOAL_S, f"{how}of {len(PAGES)}: {slowest[0]}"),
    ]


def _timed(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def _slowest(times: list[tuple[str, float]]) -> tuple[str, float]:
    return max(times, key=lambda each: each[1])


def _figure(name: str, seconds: float, goal: float, how: str) -> Figure:
    return Figure(name, seconds, "s", f"< {goal:g}", seconds < goal, "measured", how)


DASHBOARD = Benchmark("dashboard", "how long a person waits for the pages of a large database", figures)
