"""A browser of the machine, and pages that are looked at with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; the test is skipped where the machine has none.

    One for each file: while it is there, other tests in this process can use neither asyncio nor Playwright.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on this machine: {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


class Look:
    """An open page, what its console said and what it asked the network for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append("a dialog opened"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.resolve().as_uri())

    def draw_all(self) -> list[tuple[str, int]]:
        """Scrolls through the page; the name of each chart and the number of its drawn marks."""
        plots = self.page.locator("[data-chart]")
        for number in range(plots.count()):
            plots.nth(number).scroll_into_view_if_needed()
            plots.nth(number).locator("xpath=self::*[@data-drawn]").wait_for()
        marks = """
            plots => plots.map(plot => [plot.dataset.source.slice(5),
                [...plot.querySelectorAll("svg path")].filter(path => {
                    const box = path.getBBox(), style = getComputedStyle(path);
                    const painted = style.fill !== "none" || style.stroke !== "none";
                    return painted && box.width + box.height > 2;
                }).length])
        """
        found: list[list[Any]] = plots.evaluate_all(marks)
        return [(name, number) for name, number in found]

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Look]]:
    """Opens a page; at the end of the test nothing was complained about, and nothing was asked for but the file."""
    opened: list[Look] = []

    def open_page(path: Path, width: int = 1200, scheme: str = "light") -> Look:
        opened.append(Look(browser, path, width, scheme))
        return opened[-1]

    yield open_page
    for each in opened:
        problems, requests = each.problems, each.requests
        each.context.close()
        assert problems == []
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
