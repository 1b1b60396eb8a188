"""What `ddlprof cluster simulate` takes for a sweep: time in one process and in several, and memory by the jobs kept.

With `--on dask,ray` also on clusters made of this machine's cores, where these packages are installed.

The trace is drawn, so that nothing has to be fetched: sizes 1, 2, 4 and 8, durations from minutes to a day. It prints
whether both ways give the same results, word for word, and what the parent process held at most.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.machine import describe

COLUMNS = ("job_id", "submit_s", "gpus", "model", "duration_s")
MODELS = ("ResNet-18", "ResNet-50", "Transformer", "LM")


def write_trace(path: Path, jobs: int) -> None:
    """Jobs whose durations are spread evenly over powers of ten, as those of published traces are."""
    drawn = random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(jobs):
            gpus = drawn.choices((1, 2, 4, 8), (60, 15, 15, 10))[0]
            writer.writerow([number, 60 * number, gpus, drawn.choice(MODELS), round(10 ** drawn.uniform(2.5, 4.9))])


def simulated(folder: Path, *words: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds of all processes, and the largest process in MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    command = ["cluster", "simulate", "--trace", "trace.csv", "--load", "0.9", "--arrivals", "poisson", *words]
    program = (
        "import re, sys; from ddlprof.cli.app import main; code = main();"  # ru_maxrss is that of the parent, if larger
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, int(re.findall(r"^(\d+)$", done.stderr, re.MULTILINE)[-1]) / 1024


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--cluster", default="8x8")
    parser.add_argument("--policies", default="fifo,srtf")
    parser.add_argument("--on", default="", help="dask, ray or both")
    arguments = parser.parse_args()
    clusters = [kind for kind in arguments.on.split(",") if kind]
    cases = arguments.seeds * len(arguments.policies.split(","))
    print(describe())
    print(f"{cases} simulations of {arguments.jobs:,} jobs on {arguments.cluster}: {arguments.policies}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_trace(folder / "trace.csv", arguments.jobs)
        common = ["--cluster", arguments.cluster, "--policy", arguments.policies, "--seed", f"0-{arguments.seeds - 1}"]
        texts = []
        ways = [("1 process", "--workers 1"), ("2 processes", "--workers 2")]
        ways += [(f"a cluster of {kind} made here", f"--on {kind}") for kind in clusters]
        for way, options in [*ways, ("1 process and CSV files", "--workers 1 -o out/")]:
            words = [*common, *options.split(), "-o", "found.json"]
            wall_s, cpu_s, mib = simulated(folder, *words)
            texts.append((folder / "found.json").read_text(encoding="utf-8"))
            print(f"{way}: {wall_s:.1f} s, {cpu_s:.1f} s of processors, parent {mib:.0f} MiB")
        rows = (folder / "out/jobs.csv").read_bytes()
        lines = rows.count(b"\n")
        print(f"jobs.csv: {lines - 1:,} rows, {len(rows) / 2**20:.1f} MiB")
        print(f"the same results each time: {len(set(texts)) == 1}")


if __name__ == "__main__":
    main()
