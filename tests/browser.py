"""A real browser for the tests that open pages: Debian's chromium (`make browser`), driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
Scheme = Literal["light", "dark"]
PATIENCE = 15_000.0  # milliseconds until something that should appear on a page has not


@dataclass
class Opened:
    """A page in the browser, all that its console said, and all that it asked the network for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        self.said.append(f"{message.type}: {message.text}")


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser a module: Playwright has a loop in this thread meanwhile, where other tests have their own."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no browser here: make browser installs Debian's chromium")
    from playwright.sync_api import sync_playwright

    root = hasattr(os, "geteuid") and os.geteuid() == 0  # chromium's sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@contextmanager
def tabs(browser: Browser) -> Iterator[Open]:
    """Open files and addresses, each in a tab with storage of its own, until all of them are closed.

    Args:
        browser: where.
    """
    contexts = []

    def opened(
        address: str | Path, scheme: Scheme = "light", width: int = 1280, height: int = 900, **options: Any
    ) -> Opened:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        found = Opened(context.new_page())
        found.listen()
        found.page.goto(address.as_uri() if isinstance(address, Path) else address)
        return found

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """Open a file or an address for one test; `scheme`, `width` and `height` are the reader's."""
    with tabs(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_once(chromium: Browser) -> Iterator[Open]:
    """The same for all tests of a module, who leave the page as they found it: plotly takes a second to load."""
    with tabs(chromium) as opened:
        yield opened
