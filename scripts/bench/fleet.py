"""How long it takes to list many runs, and how much memory the export of a long one as Parquet takes.

`python -m scripts.bench.fleet` makes 10,000 small run directories in a temporary folder, three quarters of them with a
`summary.json`, and lists them as `ddlprof fleet` does, in a process of its own; `--steps 100000` adds the export of a
synthetic run of so many steps and 8 ranks.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ddlprof.analysis.run import analyse
from ddlprof.model.manifest import Manifest
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import load_run
from scripts.bench.synthetic_job import write_job

JOBS = 200
HOUR_NS = 3600 * 10**9


def write_runs(folder: Path, runs: int) -> int:
    """Copies of a run of 2 ranks, each a job of its own; returns how many have no summary."""
    write_job(folder / "first", ranks=2, steps=60, nodes=1)
    data = load_run(folder / "first")
    attempts = analyse(data)
    summary = summarise_run(data, attempts, build_report(data, attempts, time.time_ns()))
    manifest = Manifest.read(folder / "first")
    files = {path.name: path.read_bytes() for path in (folder / "first" / "attempt-0").iterdir()}
    without = 0
    for number in range(runs - 1):
        directory = folder / f"team-{number % 20}" / f"run-{number}"
        (directory / "attempt-0").mkdir(parents=True)
        for name, content in files.items():
            (directory / "attempt-0" / name).write_bytes(content)
        began_ns = manifest.created_unix_ns + number * HOUR_NS
        job, job_id = f"job-{number % JOBS}", f"id-{number}"
        replace(manifest, name=job, job_id=job_id, created_unix_ns=began_ns, origin_unix_ns=began_ns).write(directory)
        if number % 4:
            _of(summary, job, job_id, began_ns, 1 + number % 7 / 10).write(directory)
        else:
            without += 1
    return without + 1


def _of(summary: RunSummary, job: str, job_id: str, began_ns: int, slower: float) -> RunSummary:
    return replace(
        summary,
        job=job,
        job_id=job_id,
        created_unix_ns=began_ns,
        step_s=(summary.step_s or 0) * slower,
        instance_type="g5.12xlarge",
    )


def measured(words: list[str], output: Path) -> str:
    """The seconds of a command, those of processors, and the most memory that any child of this process has had."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("wb") as file:
        subprocess.run([sys.executable, "-m", "ddlprof", *words], stdout=file, check=True)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{seconds:.1f} s, {cpu_s:.1f} s of processor time, at most {after.ru_maxrss / 1024:.0f} MiB"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=0, help="also export a run of so many steps x 8 ranks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        without = write_runs(folder / "runs", options.runs)
        print(f"{options.runs:,} runs, {without:,} of them without summary.json")
        for words in (["--analyse", "0"], ["--analyse", "20"], ["--analyse", "0", "--format", "csv"]):
            said = measured(["fleet", str(folder / "runs"), *words], folder / "list")
            lines = len((folder / "list").read_text(encoding="utf-8").splitlines())
            print(f"ddlprof fleet {' '.join(words)}: {said}, {lines:,} lines")
        if options.steps:
            write_job(folder / "long", ranks=8, steps=options.steps, nodes=2)
            for words in (
                ["export", "--format", "parquet", "--out", str(folder / "out")],
                ["export", "--format", "csv", "--out", str(folder / "out")],
                ["share", "-o", str(folder / "out" / "long.zip")],
            ):
                said = measured([words[0], str(folder / "long"), *words[1:]], folder / "list")
                print(f"ddlprof {words[0]} {words[2]}, {options.steps:,} steps x 8 ranks: {said}")
            for kind in ("parquet", "csv", "zip"):
                size_mib = sum(path.stat().st_size for path in (folder / "out").rglob(f"*.{kind}")) / 2**20
                print(f"files *.{kind}: {size_mib:.0f} MiB")


if __name__ == "__main__":
    main()
