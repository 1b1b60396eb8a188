"""What `pip install ddlprof` costs the environment of a training: seconds, and megabytes of each distribution.

It goes into a fresh environment, without torch and without pip. Wheels are fetched and built first, so that the time of
installing is not the network's; both times are shown. Byte code is compiled, as pip does. Prints Markdown for
docs/benchmarks.md; no limit is checked.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from scripts.bench.jobs import print_table, progress

ROOT = Path(__file__).resolve().parents[2]
OURS = "ddlprof"
_MEGABYTE = 1e6


class Installed(NamedTuple):
    """A distribution in the environment."""

    name: str
    version: str
    size_mb: float
    """Of all its files, byte code included."""
    asked_by: tuple[str, ...]


def main() -> int:
    """Installs the tree, or another one beside it, and prints what is there afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tree", nargs="*", type=Path, default=[ROOT], help="source trees, one after the other [this]")
    for tree in parser.parse_args().tree:
        with tempfile.TemporaryDirectory() as folder:
            measure(tree, Path(folder))
    return 0


def measure(tree: Path, folder: Path) -> None:
    """Prints one table of a source tree, and a line of its sums."""
    wheels, environment = folder / "wheels", folder / "environment"
    progress(f"fetching wheels for {tree}")
    fetched_s = pip(sys.executable, "wheel", "--wheel-dir", str(wheels), str(tree.resolve()))
    venv.create(environment, symlinks=True, with_pip=False)
    progress("installing")
    options = ["--no-index", "--find-links", str(wheels), OURS]
    installed_s = pip(str(environment / "bin/python"), "install", *options)
    packages = next(environment.glob("lib/python*/site-packages"))
    found = sorted(installed(distributions(path=[str(packages)])), key=lambda each: -each.size_mb)
    print_table(
        ["distribution", "version", "MB", "asked for by"],
        [[each.name, each.version, f"{each.size_mb:.1f}", ", ".join(each.asked_by)] for each in found],
    )
    wheels_mb = sum(path.stat().st_size for path in wheels.iterdir()) / _MEGABYTE
    print(
        f"\n{len(found)} distributions, {sum(each.size_mb for each in found):.0f} MB installed, {wheels_mb:.0f} MB of"
        f" wheels; fetched and built in {fetched_s:.1f} s, installed in {installed_s:.1f} s"
    )


def installed(found: Iterable[Distribution]) -> list[Installed]:
    """The distributions, each with the names of those that ask for it."""
    all_found = list(found)
    asked = {each: required(each.requires or ()) for each in all_found}
    return [
        Installed(
            each.metadata["Name"],
            each.version,
            sum(size_of(Path(str(each.locate_file(file)))) for file in each.files or ()) / _MEGABYTE,
            tuple(sorted(by.metadata["Name"] for by, names in asked.items() if normal(each.metadata["Name"]) in names)),
        )
        for each in all_found
    ]


def required(requirements: Iterable[str]) -> set[str]:
    """The names in requirements, without those of extras."""
    return {
        normal(re.split(r"[^\w.-]", text, maxsplit=1)[0])
        for text in requirements
        if not re.search(r";.*\bextra\s*==", text)
    }


def normal(name: str) -> str:
    """A distribution's name as names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def size_of(path: Path) -> int:
    """Bytes; 0 for a file that is not there."""
    return path.stat().st_size if path.is_file() else 0


def pip(python: str, *arguments: str) -> float:
    """Runs pip of this environment for that Python; returns the seconds it took."""
    options = ["--python", python, "--quiet", "--disable-pip-version-check"]
    # As users have it: byte code is written, and found beside the sources.
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pip", *options, *arguments], check=True, env=variables)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
