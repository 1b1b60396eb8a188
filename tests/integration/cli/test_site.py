"""The documentation site in headless Chromium: built, opened as files, searched; it asks nobody else for anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_site_asks_nobody_else_and_is_searched(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    asked: list[str] = []
    said: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        for name in ("index", "cases/late-rank", "reference/cli", "reference/python"):
            page.goto((tmp_path / f"{name}.html").as_uri())
        page.goto((tmp_path / "index.html").as_uri())
        page.fill("input.md-search__input", "straggler")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=60_000)
        found = page.locator(".md-search-result__item").count()
        browser.close()
    assert found > 1
    assert not said
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
