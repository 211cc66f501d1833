"""The dashboard in a real browser, for its benchmark and its tests: a server process, and a headless Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from megatune_kernels.errors import MegatuneError

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STARTING_S = 60
SETTLED_JS = """() => document.querySelector('[data-testid=stApp][data-test-script-state=notRunning]')
    && !document.querySelector('[data-testid=stSkeleton]')
    && [...document.querySelectorAll('[data-testid=stPlotlyChart]')].every(each => {
        const drawn = each.querySelector('.main-svg');
        return !each.checkVisibility() || drawn && Math.abs(drawn.clientWidth - each.clientWidth) < 3;
    })"""
"""Whether the page's script is done, and the browser has every chart and table that it was sent, charts as wide as
their places."""
DRAWN_JS = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
"""Settles once the browser has painted what it has by now."""


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def missing() -> str | None:
    """What keeps a browser from being driven here; None where nothing does."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install playwright"
    if chromium() is None:
        return "there is no Chromium: apt install chromium"
    return None


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(
    db: Path, options: Sequence[str] = (), *, port: int | None = None, said: Path | None = None
) -> Iterator[str]:
    """Serve a database in a process of its own; gives the address, and ends the process with the block.

    :param port: None: a free one.
    :param said: file that keeps what the process says.
    :raises MegatuneError: when it does not answer, with what it said.
    """
    port = free_port() if port is None else port
    with tempfile.TemporaryFile() if said is None else said.open("w+b") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "megatune_dashboard", "dashboard", "--db", str(db), "--port", str(port), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process)
            yield address
        except MegatuneError as error:
            log.seek(0)
            raise MegatuneError(f"{error}: {log.read().decode(errors='replace').strip()[-500:]}") from None
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium.

    :raises MegatuneError: where there is none, saying how to get it.
    """
    lacking = missing()
    if lacking:
        raise MegatuneError(lacking)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # A container has neither the user namespaces that the sandbox needs nor much shared memory.
        opened = driver.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield opened
        finally:
            opened.close()


def settled(page: Page, timeout_s: float = 30, *, look_every_ms: int | None = None) -> None:
    """Wait until the page's script has run and the browser has painted what it made.

    :param look_every_ms: None: with every frame, to take the time; the browser then paints all the while.
    """
    # Asked with every frame: selectors are looked for twice a second once they were not there at first.
    page.wait_for_function(SETTLED_JS, timeout=timeout_s * 1000, polling=look_every_ms or "raf")
    page.evaluate(DRAWN_JS)


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise MegatuneError(f"the dashboard ended with exit code {process.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise MegatuneError(f"the dashboard did not answer within {STARTING_S} s")
