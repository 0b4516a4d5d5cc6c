"""A real browser, the machine's chromium, driven by Playwright; without one, its tests are skipped."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def launched() -> "Iterator[Browser]":
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (apt-get install chromium)")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=found, chromium_sandbox=os.geteuid() != 0)
        except Error as error:
            pytest.skip(f"{found} does not start here: {error.message.splitlines()[0]}")
        yield browser
        browser.close()
