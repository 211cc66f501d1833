"""Databases that campaigns made, the pages, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import campaign_examples
import pytest

from megatune_dashboard import browsing
from megatune_dashboard.app.people import Person
from megatune_dashboard.app.people import Role

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page
    from streamlit.testing.v1 import AppTest

SCREENSHOTS = "MEGATUNE_SCREENSHOTS"
"""Environment variable with a folder that keeps what the pages looked like."""
LOCAL = Person("somebody", Role.REVIEWER, local=True)


@pytest.fixture(scope="session")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two campaigns that replayed shipped recordings; do not write to it."""
    path = tmp_path_factory.mktemp("tuned") / "tuned.db"
    campaign_examples.tuned(path)
    return path


@pytest.fixture
def tuned(tuned_once: Path, tmp_path: Path) -> Path:
    """The same, for one test alone."""
    path = tmp_path / "tuned.db"
    shutil.copy(tuned_once, path)
    return path


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Shows one page of a database: ``show(path, "explore", operator="projection")``."""
    pytest.importorskip("streamlit")
    from streamlit.testing.v1 import AppTest

    from megatune_dashboard.app import frame

    def script(path: str, person: object) -> None:
        from megatune_dashboard.app.frame import show

        show(path, person)  # type: ignore[arg-type]

    def opened(database: Path, path: str, *, person: Person = LOCAL, **filters: str) -> AppTest:
        monkeypatch.setenv(frame.DATABASE, str(database))
        app = AppTest.from_function(script, kwargs={"path": path, "person": person}, default_timeout=60)
        for name, value in filters.items():
            app.query_params[name] = value
        app.run()
        assert not app.exception, app.exception
        return app

    return opened


@pytest.fixture(scope="session")
def needs_chromium() -> None:
    """Where there is no browser the test is skipped; in continuous integration it fails."""
    lacking = browsing.missing()
    if lacking and os.environ.get("CI"):
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)


@pytest.fixture(scope="session")
def chromium(needs_chromium: None) -> Iterator[Browser]:
    """A real browser."""
    with browsing.browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """An empty window of a browser that knows nothing yet."""
    # Nobody watches: what moves costs a core while it does.
    context = chromium.new_context(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def served_tuned(tuned_once: Path, chromium: Browser) -> Iterator[str]:
    """Address of pages of the database with two campaigns; nobody writes to it."""
    with browsing.served(tuned_once) as address:
        yield address


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get(SCREENSHOTS, tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
