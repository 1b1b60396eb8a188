"""Types every command of README and docs in a fresh folder, and compares what it says with what the page shows.

    python -m scripts.docs.commands                   # all pages; takes some minutes
    python -m scripts.docs.commands docs/recommend.md

A command stands in a block of code behind `$ `, and what it says below it. Figures are masked. What was measured
differs from machine to machine: there the labels of those lines are compared that are always there. Of a command in a
block without `$ ` it is only asked that it works.

The reader's script, `train.py`, is the example of this repository, and a run of it has each name that pages have for
runs of the reader's.
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
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scripts.docs.cases import says

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md")))
_MEASURES = frozenset({"run", "report", "compare", "watch", "probe", "characterize", "learn", "share"})
_ALWAYS = re.compile(r"(ddlprof|Step|Verdict|  why|  next|Overhead)(?= )")
_SCRIPT = "examples/digits.py"
_RUNS = re.compile(r"RUN|[AB]|(?:before|after)(?:-\d)?|ddlprof-runs/[a-z]+(?:-[0-9-]+)?")
"""The names of runs that the reader has made."""
_MACHINES = "machines: [{gpu: V100, network: 10 Gbit/s}, {gpu: T4, network: 10 Gbit/s}]"
_FILE = re.compile(r".*\.(?:json|py|csv|yaml|txt|zip|gz)|runs(?:/.*)?|traces/|imported|tables|host-.*|DIR|out/?")
_ELSEWHERE = {
    r"\w+://.*|URL": "asks a server",
    "refresh": "asks the clouds",
    r"/.*": "is of a folder that is not here",
    r".*\*.*|RUN\d": "is of several runs",
    r"\d+:\d+": "is of a longer run",
    r"(?:.*,)?[a-z_.]+:\w+|--data-call": "is of a script of the reader's",
    r".*\.csv:.*|elastic": "is of jobs of others",
    "--live|--wait|--metrics-port": "is of a run under way",
    "srun|-m|torchrun|torchvision:.*": "needs another program or library",
    "large_net.json": "needs a file that the page describes",
    "characterize": "takes minutes",
}  # fmt: skip
"""Words of commands that cannot be typed here, and why."""
_FIGURE = re.compile(r"[+-]?\d[\d,.]*")


class Typed(NamedTuple):
    """A command of a page, and what the page shows of it; None: nothing."""

    words: str
    shown: str | None


def typed(page: str) -> Iterator[Typed]:
    """The commands of ours in a page's blocks of code."""
    for block in re.findall(r"^```\n(.*?)^```$", page, flags=re.S | re.M):
        block = block.replace("\\\n", " ")
        if not block.startswith("$ "):
            yield from (Typed(found, None) for found in re.findall(r"^ddlprof [a-z].*", block, flags=re.M))
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            words, _, shown = part.partition("\n")
            yield Typed(re.sub(r"\s+", " ", words), shown)


def skipped(words: str, folder: Path) -> str:
    """Why a command cannot be typed here; empty if it can."""
    found = shlex.split(words, comments=True)
    if "ddlprof" not in found or any("..." in word for word in found):
        return "not a whole command of ours"
    for pattern, why in _ELSEWHERE.items():
        if elsewhere := [
            word for word in found if re.fullmatch(pattern, word) and not (folder / _module(word)).exists()
        ]:
            return f"{elsewhere[0]} {why}"
    made = {after for option, after in pairwise(found) if option in ("-o", "--out")}
    for name in found:
        if _RUNS.fullmatch(name) and name not in made and not (folder / name).exists():
            shutil.copytree(Path(_run_made().name) / "run", folder / name)
    if "ddlprof-runs" in found and not (folder / "ddlprof-runs").exists():
        shutil.copytree(Path(_run_made().name) / "run", folder / "ddlprof-runs" / "digits")
    missing = [each for each in found if _FILE.fullmatch(each) and each not in made and not (folder / each).exists()]
    return f"{missing[0]} is not made on the page" if missing else ""


@cache
def _run_made() -> tempfile.TemporaryDirectory[str]:
    """A folder with a run of the reader's script, which all pages take."""
    made = tempfile.TemporaryDirectory()
    shutil.copy(ROOT / _SCRIPT, Path(made.name) / "train.py")
    says("ddlprof run --quiet --nproc-per-node 2 --out run train.py --epochs 2", Path(made.name))
    return made


def _module(word: str) -> str:
    """The file of MODULE:FACTORY."""
    return word.partition(":")[0].replace(".", "/") + ".py"


def masked(text: str) -> list[str]:
    """The words of a text without its figures, and without the way in which its lines are broken."""
    return re.sub(r"[\s]+", " ", _FIGURE.sub("0", text)).split()


def _labels(text: str) -> set[str]:
    return {found[0] for line in text.splitlines() if (found := _ALWAYS.match(line))}


def difference(command: Typed, said: str) -> str:
    """What the command says otherwise than the page; empty where nothing."""
    if command.shown is None:
        return ""
    words = shlex.split(command.words)
    if words[words.index("ddlprof") + 1] in _MEASURES or "measured" in words:
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
        shutil.copy(ROOT / _SCRIPT, folder / "train.py")
        shutil.copy(ROOT / "examples/jobs.csv", folder)
        (folder / "machines.yaml").write_text(_MACHINES, encoding="utf-8")
        for command in typed((ROOT / page).read_text(encoding="utf-8")):
            why, said = skipped(command.words, folder), ""
            if not why:
                try:
                    said = difference(command, says(command.words, folder))
                except subprocess.CalledProcessError as error:
                    missing = re.search(r"(\S+ is not installed): pip install", error.output)
                    why, said = (missing[1] if missing else ""), f"exit code {error.returncode}: {error.output}"
                    said *= command.shown is not None or error.returncode > 1
                except ValueError as error:  # it says where it ran
                    said = str(error) * (command.shown is not None)
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
