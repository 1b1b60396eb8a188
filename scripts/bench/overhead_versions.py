"""What the hooks of an earlier version cost beside those of the working tree, on one machine in one hour.

    python -m scripts.bench.overhead_versions 6f55ac9 [--quick] [--rounds 2]

The benchmark is today's (`scripts.bench.overhead`) for both; only the packages are those of the commit. The two run in
turn, and the table has the median of the rounds. 6f55ac9 is the first version whose overhead was written down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from scripts.bench.jobs import print_table, progress
from scripts.bench.machine import describe
from scripts.bench.overhead import KINDS, Kind, Result

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ddlprof", "recommender", "instance_catalog")


def lay_out(commit: str, folder: Path) -> Path:
    """A folder with the packages of a commit, its core in C if it has one, and today's scripts.

    Raises CalledProcessError if git does not know the commit.
    """
    listed = subprocess.run(["git", "ls-tree", "--name-only", commit], cwd=ROOT, capture_output=True, check=True)
    there = listed.stdout.decode().split()
    names = [name for name in (*PACKAGES, "setup.py", "pyproject.toml", "README.md") if name in there]
    archive = subprocess.run(["git", "archive", commit, *names], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    if (folder / "setup.py").exists():
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=folder, check=True, capture_output=True)
    return folder


def measure(kind: Kind, quick: bool, folder: Path) -> Result:
    """One kind of step with the packages of a folder, in a process of its own. Raises CalledProcessError."""
    words = ["--kind", str(KINDS.index(kind)), *(["--quick"] if quick else [])]
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "result.json"
        command = [sys.executable, "-m", "scripts.bench.overhead", "--result", str(result), *words]
        environment = {**os.environ, "PYTHONPATH": str(folder)}  # before an editable install
        subprocess.run(command, cwd=folder, env=environment, check=True)
        return Result(**json.loads(result.read_text(encoding="utf-8")))


def table_row(kind: Kind, version: str, results: list[Result]) -> list[str]:
    """The medians of the rounds."""

    def median(values: list[float]) -> float:
        return statistics.median(values)

    return [
        f"{kind.step_ms} ms, {kind.workers} workers", version,
        f"{median([each.ratio for each in results]):.4f} ± {median([each.ratio_se for each in results]):.4f}",
        f"{1e6 * median([(each.ratio - 1) * each.step_s for each in results]):.0f}",
        f"{1e6 * median([each.hook_s for each in results]):.0f}",
        f"{median([each.helper_share for each in results]):.2%}", f"{median([each.total for each in results]):.4f}",
    ]  # fmt: skip


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="6f55ac9")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds with these words, such as '20 ms'")
    args = parser.parse_args()
    print(describe())
    rows = []
    with tempfile.TemporaryDirectory() as name:
        versions = {args.commit: lay_out(args.commit, Path(name)), "now": ROOT}
        for kind in (kind for kind in KINDS if not kind.control):
            if args.only not in f"{kind.step_ms} ms, {kind.workers} workers":
                continue
            found: dict[str, list[Result]] = {version: [] for version in versions}
            for number in range(args.rounds):
                for version, folder in versions.items():
                    progress(f"{kind.step_ms} ms, {kind.workers} workers: {version}, round {number + 1}")
                    found[version].append(measure(kind, args.quick, folder))
            rows += [table_row(kind, version, results) for version, results in found.items()]
    print_table(
        ["step", "version", "on / off", "µs a step, from on / off", "µs a step, own clock", "helper thread",
         "on / off with helper"],
        rows,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
