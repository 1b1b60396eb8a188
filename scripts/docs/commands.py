"""Types every command of README and docs in a fresh folder, and compares what it says with what the page shows.

    python -m scripts.docs.commands                   # all pages; takes some minutes
    python -m scripts.docs.commands docs/recommend.md

A command stands in a block of code behind `$ `, and what it says below it. Figures are masked. What was measured
differs from machine to machine: there the labels of those lines are compared that are always there.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scripts.docs.cases import says

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md")))
_MEASURES = frozenset({"run", "report", "compare", "watch", "probe", "characterize", "learn", "share"})
_ALWAYS = re.compile(r"(ddlprof|Step|Verdict|  why|  next|Overhead)(?= )")
_FIGURE = re.compile(r"[+-]?\d[\d,.]*")


class Typed(NamedTuple):
    """A command of a page, and what the page shows of it."""

    words: str
    shown: str


def typed(page: str) -> Iterator[Typed]:
    """The commands of ours in a page's blocks of code."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", page, flags=re.S | re.M):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.M)[1:]:
            words, _, shown = part.partition("\n")
            yield Typed(re.sub(r"\s+", " ", words), shown)


def skipped(words: str, folder: Path) -> str:
    """Why a command cannot be typed here; empty if it can."""
    found = shlex.split(words)
    if "ddlprof" not in found or "..." in found:
        return "not a whole command of ours"
    names = [word for word in found if re.search(r"\.(json|py|csv)$|^ddlprof-runs/|^runs$", word)]
    made = {after for option, after in pairwise(found) if option in ("-o", "--out")}
    missing = [name for name in names if name not in made and not (folder / name).exists()]
    return f"{missing[0]} is not made on the page" if missing else ""


def masked(text: str) -> list[str]:
    """The words of a text without its figures, and without the way in which its lines are broken."""
    return re.sub(r"[\s]+", " ", _FIGURE.sub("0", text)).split()


def _labels(text: str) -> set[str]:
    return {found[0] for line in text.splitlines() if (found := _ALWAYS.match(line))}


def difference(command: Typed, said: str) -> str:
    """What the command says otherwise than the page; empty where nothing."""
    name = shlex.split(command.words)[shlex.split(command.words).index("ddlprof") + 1]
    if name in _MEASURES:
        missing = _labels(command.shown) - _labels(said)
        return f"lines are missing: {', '.join(sorted(missing))}" if missing else ""
    pattern = r" ".join(r"(?:\S+ )*?\S*" if word == "..." else re.escape(word) for word in masked(command.shown))
    return "" if not command.shown or re.fullmatch(pattern, " ".join(masked(said))) else f"says\n{said}"


def differences(page: str) -> tuple[int, list[str]]:
    """How many commands of a page were typed, and what differs."""
    found, count = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("examples", "scripts"):
            shutil.copytree(ROOT / each, folder / each)
        for command in typed((ROOT / page).read_text(encoding="utf-8")):
            why, said = skipped(command.words, folder), ""
            if not why:
                try:
                    said = difference(command, says(command.words, folder))
                except subprocess.CalledProcessError as error:
                    missing = re.search(r"(\S+ is not installed): pip install", error.output)
                    why, said = (missing[1] if missing else ""), f"exit code {error.returncode}: {error.output}"
            if why:
                sys.stderr.write(f"left out: {command.words}: {why}\n")
                continue
            count += 1
            found += [f"{page}: {command.words}: {said}"] * bool(said)
    return count, found


def main() -> int:
    """Exit code 1 if a command says something else than its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="*", help="pages [all]")
    pages: list[str] = parser.parse_args().page
    results = [differences(page) for page in pages or PAGES]
    for text in (text for _, texts in results for text in texts):
        print(text)
    print(f"{sum(count for count, _ in results)} commands typed, {sum(len(texts) for _, texts in results)} differ")
    return int(any(texts for _, texts in results))


if __name__ == "__main__":
    sys.exit(main())
