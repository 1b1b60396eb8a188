"""How long `ddlprof report` and `ddlprof export` take for a job of hundreds of ranks, and how much memory.

The job is synthetic (see `synthetic_job.py`): 1,024 ranks on 128 machines, 2,000 steps of ten collectives. Prints
Markdown for docs/benchmarks.md. Files are in the page cache, as they are right after a job.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.synthetic_job import BUCKETS, write_job

RANKS, STEPS, RANKS_OF_A_NODE = 1024, 2000, 8
QUICK_RANKS, QUICK_STEPS = 64, 500
LIMIT_S, LIMIT_MIB = 10.0, 1200
"""The limits for the report of the full job."""


class Done(NamedTuple):
    """A Python process that has ended."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    output: str


def run(*words: str) -> Done:
    """Runs Python with these words; ends this process if it fails."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begin
    if process.returncode:
        sys.exit(f"{' '.join(words)} ended with {process.returncode}")
    kib = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return Done(wall_s, usage.ru_utime + usage.ru_stime, kib / 1024, output)


def phases(directory: Path, format: str = "table") -> None:
    """Prints the processor time of loading, analysing and rendering, in this process."""
    from ddlprof.analysis.run import analyse
    from ddlprof.report.run.formats import FORMATS, Analysed
    from ddlprof.store import load_run

    times = [time.process_time()]
    data = load_run(directory)
    times.append(time.process_time())
    attempts = analyse(data)
    times.append(time.process_time())
    "".join(FORMATS[format](Analysed(data, attempts, time.time_ns())))
    times.append(time.process_time())
    print(*(f"{end - begin:.1f}" for begin, end in pairwise(times)))


def main() -> int:
    """Exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RANKS} ranks, {QUICK_STEPS} steps")
    parser.add_argument("--phases", type=Path, help=argparse.SUPPRESS)  # what this script starts itself with
    arguments = parser.parse_args()
    if arguments.phases:
        phases(arguments.phases)
        return 0
    ranks, steps = (QUICK_RANKS, QUICK_STEPS) if arguments.quick else (arguments.ranks, arguments.steps)
    nodes = -(-ranks // RANKS_OF_A_NODE)
    # In a process of its own, as everything that needs memory: a child's peak is never below its parent's size.
    print(run(str(Path(__file__).with_name("machine.py"))).output.strip())
    with tempfile.TemporaryDirectory() as folder:
        directory, out = Path(folder) / "run", Path(folder) / "csv"
        progress(f"writing {ranks} ranks x {steps} steps")
        write_job(directory, ranks, steps, nodes)
        size_mb = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6
        progress("report")
        report = run("-m", "ddlprof", "report", str(directory))
        split = run(__file__, "--phases", str(directory))
        progress("export")
        export = run("-m", "ddlprof", "export", str(directory), "--out", str(out))
    progress(report.output)
    load_s, analyse_s, render_s = split.output.split()
    headers = ["job", "collectives", "on disk MB", "report s (wall)", "s (CPU)", "load", "analyse", "render", "MiB",
               "export s (wall)", "s (CPU)", "MiB"]  # fmt: skip
    print_table(headers, [[
        f"{ranks} ranks x {steps:,} steps", f"{ranks * steps * BUCKETS:,}", f"{size_mb:.0f}", f"{report.wall_s:.1f}",
        f"{report.cpu_s:.1f}", load_s, analyse_s, render_s, f"{report.peak_mib:.0f}", f"{export.wall_s:.1f}",
        f"{export.cpu_s:.1f}", f"{export.peak_mib:.0f}",
    ]])  # fmt: skip
    limits = Limits()
    limits.at_most("report, seconds of processor time", report.cpu_s, LIMIT_S)
    limits.at_most("report, MiB", report.peak_mib, LIMIT_MIB)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
