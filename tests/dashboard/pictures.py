"""What pages look like: pictures that are kept, and whether a page fits its window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megatune_dashboard import browsing

LOOK_MS = 50
"""How often a page that is waited for is looked at: a browser that is asked with every frame paints all the while."""

if TYPE_CHECKING:
    from playwright.sync_api import Page


def settled(page: Page) -> None:
    """Wait until the page shows everything."""
    browsing.settled(page, look_every_ms=LOOK_MS)


def go(page: Page, address: str) -> None:
    """Open a page that has a heading, and wait until it shows everything."""
    page.goto(address)
    page.get_by_role("heading", level=1).first.wait_for()
    settled(page)


def picture(page: Page, path: Path) -> None:
    """The whole page: its window is made as high as what is in it, and as it was afterwards."""
    size = page.viewport_size
    assert size is not None
    needed = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": min(int(needed) + 40, 6000)})
    settled(page)
    page.screenshot(path=path)
    page.set_viewport_size(size)


def in_both_schemes(page: Page, screenshots: Path, name: str) -> None:
    """Pictures in light and dark of what the page shows; it fits the width of its window in both."""
    size = page.viewport_size
    assert size is not None
    for scheme, dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.wait_for_function(
            "dark => (parseInt(getComputedStyle(document.querySelector('[data-testid=stApp]'))"
            ".backgroundColor.match(/\\d+/)[0]) < 128) == dark",
            arg=dark,
            polling=LOOK_MS,
        )
        settled(page)
        wide = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= size["width"], f"{name} has to be scrolled sideways"
        picture(page, screenshots / f"{name}-{size['width']}-{scheme}.png")
