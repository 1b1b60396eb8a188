"""Makes the pictures of the documentation: the page of a real run, light and dark, in docs/images.

`python -m scripts.docs.pictures` trains the job of docs/cases/late-rank.md; `--run RUN` takes a run that is there.
Needs playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1120, 1400
LARGEST_BYTES = 300_000
SETTLED_MS = 300


def make_run(folder: Path) -> str:
    """Trains the job of the case study of a late rank; returns the name of the run directory in `folder`."""
    command = [sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", "uneven", "--nproc-per-node", "2"]
    subprocess.run([*command, str(ROOT / "scripts/docs/jobs/uneven_texts.py")], cwd=folder, check=True)
    return "uneven"


def make_page(run: str, folder: Path) -> Path:
    """The page of a run."""
    words = ["report", run, "--format", "html", "--instance", "g5.12xlarge", "-o", "page.html"]
    subprocess.run([sys.executable, "-m", "ddlprof", *words], cwd=folder, check=True)
    return folder / "page.html"


def take(page: Path, scheme: Literal["light", "dark"], picture: Path) -> None:
    """A picture of the beginning of the page."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit(f"no browser on this machine: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
        view.goto(page.as_uri())
        view.wait_for_timeout(SETTLED_MS)
        view.screenshot(path=picture)
        browser.close()


def main() -> int:
    """Exit code 1 if a picture is too large to be kept in the repository."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="take this run")
    given: Path | None = parser.parse_args().run
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = make_page(str(given.resolve()) if given else make_run(folder), folder)
        take(page, "light", IMAGES / "page.png")
        take(page, "dark", IMAGES / "page-dark.png")
    sizes = {path.name: path.stat().st_size for path in sorted(IMAGES.glob("page*.png"))}
    for file, size in sizes.items():
        print(f"{file}: {size:,} bytes")
    return int(max(sizes.values()) > LARGEST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
