"""Chromium for tests of pages; without it these tests are skipped and counted."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support.processes import toolchains

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str:
    """Return the path of Chromium, or skip the test."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        toolchains.skip("chromium")
    assert path is not None
    return path


@contextmanager
def browser() -> "Iterator[Browser]":
    """Run Chromium without a window; no event loop of asyncio may run in this thread meanwhile."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()
