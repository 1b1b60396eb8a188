"""Takes pictures of every kind of page, to be looked at: at 390 and 1440 pixels, light and dark, and on paper.

`python -m scripts.docs.pages FOLDER` trains the example on one process and on two, and jobs that hang and restart,
makes their pages and those of the other commands, and puts all into the folder; `--page FILE` takes pictures of a page
that is there instead. Needs playwright, pypdfium2 and a Chromium.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from scripts.docs.browser import started, take

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples/digits.py")
GPT2 = str(ROOT / "examples/gpt2-large.json")
JOBS = str(ROOT / "examples/jobs.csv")
WIDTHS, HEIGHT = (390, 1440), 900
Scheme = Literal["light", "dark"]
_ONE = ("run", "--quiet", "--out", "one", EXAMPLE)
_TWO = ("run", "--quiet", "--out", "two", "--nproc-per-node", "2", EXAMPLE)
_HUNG = (
    "run", "--quiet", "--out", "hung", "--hang-after", "3", "--nproc-per-node", "2",
    str(ROOT / "scripts/jobs/hangs.py"), "sleeps",
)  # fmt: skip
_RESUMED = (
    "run", "--quiet", "--out", "resumed", "--", "torchrun", "--max-restarts", "2",
    str(ROOT / "scripts/jobs/resuming.py"), ".", "60", "25,42",
)  # fmt: skip
RUNS: tuple[tuple[str, ...], ...] = (_ONE, _TWO, _HUNG, _RESUMED)
_OF_HANGS = {"TIMEOUT_S": "8", "LONG_S": "30"}
_LAYOUTS = ("--layouts", "auto", "--gpus", "64", "--global-batch", "512")
_ASKED = ("--batch", "2,4,8", "--samples", "300000", "--budget", "12h")
PAGES: dict[str, tuple[str, ...]] = {
    "one-process": ("report", "one"),
    "two-ranks": ("report", "two", "--instance", "g5.12xlarge"),
    "hang": ("report", "hung"),
    "attempts": ("report", "resumed"),
    "comparison": ("compare", "one", "two"),
    "plans": ("recommend", GPT2, *_ASKED),
    "layouts": ("recommend", GPT2, "--samples", "300000", "--budget", "30d", *_LAYOUTS),
    "cluster": ("cluster", "simulate", "--trace", JOBS, "--cluster", "2x4", "--policy", "fifo,srtf"),
}
"""The commands that make the pages; `-o NAME.html` is added."""


def make_pages(folder: Path) -> list[Path]:
    """The pages of all kinds, in the folder; a run that is there already is taken."""
    pages = [(*words, "-o", f"{name}.html") for name, words in PAGES.items()]
    command, environment = [sys.executable, "-m", "ddlprof"], {**os.environ, **_OF_HANGS}
    for words in (each for each in RUNS if not (folder / each[each.index("--out") + 1]).exists()):
        subprocess.run([*command, *words], cwd=folder, env=environment, check=words is not _HUNG)
    for words in pages:
        subprocess.run([*command, *words], cwd=folder, check=True)
    return [folder / f"{name}.html" for name in PAGES]


def print_page(browser: Browser, page: Path) -> None:
    """The page as on paper, a picture of each sheet beside it."""
    from pypdfium2 import PdfDocument  # type: ignore[import-untyped]

    view = browser.new_page(viewport={"width": WIDTHS[-1], "height": HEIGHT})
    view.goto(page.as_uri())
    sheets = PdfDocument(view.pdf())
    view.close()
    for number, sheet in enumerate(sheets, 1):
        sheet.render(scale=1.2).to_pil().save(page.with_name(f"{page.stem}-paper-{number}.png"))


def main() -> None:
    """Makes the pages and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to put them")
    parser.add_argument("--page", type=Path, action="append", help="take pictures of this page only")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    given: list[Path] = asked.page or []
    pages = [page.resolve() for page in given] or make_pages(asked.folder.resolve())
    with started() as browser:
        for page in pages:
            for width in WIDTHS:
                for scheme in get_args(Scheme):
                    picture = asked.folder / f"{page.stem}-{width}-{scheme}.png"
                    take(browser, page, picture, width, HEIGHT, scheme, whole=True)
            print_page(browser, page)
            print(page.name)


if __name__ == "__main__":
    main()
