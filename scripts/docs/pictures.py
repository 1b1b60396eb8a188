"""Makes the pictures of the documentation, in docs/images: the page of a real run, light and dark, its card, and an
answer of `recommend`.

`python -m scripts.docs.pictures` trains the job of docs/cases/late-rank.md; `--run RUN` takes a run that is there.
Needs playwright and a Chromium. `made-of.txt` beside the pictures has a digest of what they show, by which a test says
when they are old.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.docs.browser import started, take
from scripts.docs.terminal import picture, shown

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
MADE_OF = IMAGES / "made-of.txt"
SOURCES = (
    "ddlprof/report/html/*.css", "ddlprof/report/html/*.js", "ddlprof/report/html/shell.py",
    "ddlprof/report/run/html/verdict.py", "ddlprof/report/plans/table.py", "ddlprof/report/plans/text.py",
)  # fmt: skip
"""The templates and styles of what the pictures show."""
PICTURES = ("page.png", "page-dark.png", "card.svg", "recommend.svg")
WIDTH, HEIGHT = 1120, 1000
COLUMNS, OF_PLANS = 120, 132
LARGEST_BYTES = 300_000
_QUESTION = ["--batch", "2,4,8", "--samples", "300000", "--budget", "12h", "--top", "5"]


def digest() -> str:
    """A digest of the templates and styles."""
    whole = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        whole.update(path.read_bytes())
    return whole.hexdigest()


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


def of_terminals(run: str, folder: Path) -> None:
    """The card and the answer, as on a terminal."""
    typed = f"ddlprof report {Path(run).name}"
    (IMAGES / "card.svg").write_text(picture(typed, shown(["report", run], folder, COLUMNS), COLUMNS))
    job = "examples/gpt2-large.json"
    answer = shown(["recommend", job, *_QUESTION], ROOT, OF_PLANS)
    (IMAGES / "recommend.svg").write_text(picture(" ".join(["ddlprof recommend", job, *_QUESTION]), answer, OF_PLANS))


def main() -> int:
    """Exit code 1 if a picture is too large to be kept in the repository."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="take this run")
    given: Path | None = parser.parse_args().run
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, started() as browser:
        folder = Path(name)
        if given:
            (folder / given.name).symlink_to(given.resolve())
        run = given.name if given else make_run(folder)
        page = make_page(run, folder)
        take(browser, page, IMAGES / "page.png", WIDTH, HEIGHT)
        take(browser, page, IMAGES / "page-dark.png", WIDTH, HEIGHT, "dark")
        of_terminals(run, folder)
    MADE_OF.write_text(f"{digest()}\n")
    sizes = {name: (IMAGES / name).stat().st_size for name in PICTURES}
    for file, size in sizes.items():
        print(f"{file}: {size:,} bytes")
    return int(max(sizes.values()) > LARGEST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
