"""Where the differential experiments and the direct attribution agree, and where they cannot.

Each row is one `ddlprof characterize` of `jobs/reading.py`. Stated limit: 5 % of the step, for interconnect, prep and
data (prep and fetch together). Where fetch ends and prep begins is a question of definition: it is shown, not checked.
In the row with a late rank prep and data must differ: the differences book there what all ranks wait for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.jobs import JOBS, Limits, print_table, progress
from scripts.bench.machine import describe

AGREE = 0.05
CHECKED = ("interconnect", "prep", "data")
FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Case:
    """One row. `differs`: the stalls that the two methods must see differently."""

    name: str
    ranks: int = 1
    job: dict[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()


CASES = (
    Case("reads files", job={"files_each": 4}),
    Case("reads files, 2 workers", job={"files_each": 10, "workers": 2, "compute_ms": 8}),
    Case("reads and sleeps", job={"stall_ms": 15}),
    Case("2 ranks, read and sleep", ranks=2, job={"stall_ms": 15}),
    Case("2 ranks, one is late", ranks=2, job={"stall_ms": 30, "late_rank": 1}, differs=("prep", "data")),
)


def characterize(case: Case, folder: Path, files: Path, steps: int, repeats: int) -> dict[str, Any]:
    """The result as JSON."""
    options = [f"--max-steps={steps}", f"--repeat={repeats}", f"--nproc-per-node={case.ranks}", "--format=json"]
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in {"files": files, **case.job}.items()]
    command = [sys.executable, "-m", "ddlprof", "characterize", *options, f"--out={folder / 'runs'}"]
    done = subprocess.run(
        [*command, str(JOBS / "reading.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stderr}\n{' '.join(command)} ended with {done.returncode}")
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def row(case: Case, result: dict[str, Any]) -> list[str]:
    """One line of the table: by difference / directly, for each stall."""
    cells = [case.name, f"{1e3 * result['reference_step_s']:.1f}"]
    for stall in result["stalls"][:4]:
        if stall["stall_s"] is None:
            cells.append("")
        else:
            figures = f"{1e3 * stall['stall_s']:.1f} / {1e3 * stall['direct_s']:.1f}"
            cells.append(f"{figures} ({stall['disagreement_share']:+.1%})")
    straggler = next(e for e in result["experiments"] if e["name"] == "warm")["times_s"]["straggler"]
    return [*cells, "" if straggler is None else f"{1e3 * straggler:.1f}"]


def check(case: Case, result: dict[str, Any], limits: Limits) -> None:
    """The stated limits of one row."""
    for stall in result["stalls"]:
        share = stall["disagreement_share"]
        what = f"{case.name}: disagreement about {stall['name']} as a share of the step"
        if stall["name"] in case.differs:
            limits.at_least(what, share, AGREE)
        elif share is not None and stall["name"] in CHECKED:
            limits.at_most(what, abs(share), AGREE)


def write_files(folder: Path, count: int) -> None:
    """Small files, on the disk and clean."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05d}").write_bytes(os.urandom(FILE_BYTES))
    os.sync()


def main() -> int:
    """Runs every case, prints the table, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--files", type=int, default=2560, help="files to write")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    args = parser.parse_args()
    limits, rows, remarks = Limits(), [], []
    print(describe())
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        write_files(Path(name) / "files", args.files)
        for number, case in enumerate(CASES):
            if args.only not in case.name:
                continue
            progress(case.name)
            folder = Path(name) / str(number)
            folder.mkdir()
            result = characterize(case, folder, Path(name) / "files", args.steps, args.repeat)
            rows.append(row(case, result))
            check(case, result, limits)
            remarks += [f"- {case.name}: {remark}" for remark in result["remarks"]]
    print_table(
        ["job", "step ms", "interconnect ms", "prep ms", "fetch ms", "data ms", "straggler ms (warm)"],
        rows,
    )
    print("\nEach stall: by difference / directly (disagreement as a share of the step). Remarks:\n")
    print("\n".join(remarks))
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
