"""A browser of the machine that takes pictures of pages."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SETTLED_MS = 300
_LONGEST_MS = 180_000  # on a busy machine, of a long page


@contextmanager
def started() -> Iterator[Browser]:
    """A headless Chromium. Ends the program where the machine has none."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit(f"no browser on this machine: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def take(
    browser: Browser, page: Path, picture: Path, width: int, height: int, scheme: Literal["light", "dark"] = "light",
    whole: bool = False,
) -> None:  # fmt: skip
    """A picture of the beginning of the page, or of the whole."""
    view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    view.set_default_timeout(_LONGEST_MS)
    view.goto(page.as_uri())
    if whole:
        for plot in view.locator("[data-chart]").all():
            plot.locator("xpath=self::*[@data-drawn]").wait_for(state="attached")
    view.wait_for_timeout(_SETTLED_MS)
    view.screenshot(path=picture, full_page=whole)
    view.close()
