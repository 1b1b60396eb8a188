"""How often `ddlprof compare` calls identical runs different, and how often it finds a step that is 5 % longer.

Each pair is of real runs, every one a process of its own: two that are the same, and one for each class that takes 5 %
of the step more. Machines drift, so the runs of a pair are made one after the other, in alternating order. The runs
are kept in `--out`: what is there already is not made again, so the benchmark can be stopped and continued, and
`--pairs 0` repeats the analysis alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.jobs import JOBS, progress

INJECTED = 0.05


@dataclass(frozen=True)
class Job:
    """A job of `jobs/regular.py` and what makes a class of it longer: the option, and how much of it is 1 ms a step."""

    name: str
    options: dict[str, float]
    longer: dict[str, tuple[str, float]]


WORKERS = 4
JOB_KINDS = (
    Job("sleeping", {}, {"data": ("data-ms", 1), "compute": ("compute-ms", 1), "other": ("other-ms", 1)}),
    Job("loader-bound", {"workers": WORKERS, "data-ms": 7 * WORKERS}, {"data": ("data-ms", WORKERS)}),
    Job("computing", {"compute-ms": 0, "burn": 120}, {"other": ("other-ms", 1)}),
)


def options_of(job: Job, kind: str, more_ms: float) -> dict[str, float]:
    """The options of a run; `kind` is A, B (the same) or the class that takes `more_ms` more."""
    if kind in ("A", "B"):
        return job.options
    option, each = job.longer[kind]
    defaults = {"data-ms": 1.6, "compute-ms": 4.0, "other-ms": 0.8}
    return job.options | {option: job.options.get(option, defaults[option]) + each * more_ms}


def order(job: Job, pair: int) -> list[str]:
    """The kinds of a pair in the order in which they are run."""
    first, *rest = job.longer
    kinds = [first, "A", "B", *rest]
    return kinds if pair % 2 == 0 else kinds[::-1]


def run(directory: Path, options: dict[str, float]) -> None:
    """One run, unless it is there."""
    if (directory / "done").exists():
        return
    subprocess.run(["rm", "-rf", str(directory)], check=True)
    arguments = [f"--{name}={value:g}" for name, value in options.items()]
    command = [sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", str(directory)]
    done = subprocess.run(
        [*command, str(JOBS / "regular.py"), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stderr}\n{' '.join(command)} ended with {done.returncode}")
    (directory / "done").touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("compare-runs"))
    parser.add_argument("--jobs", default="sleeping")
    args = parser.parse_args()
    from ddlprof.analysis.run import analyse, headline_attempt
    from ddlprof.store import load_run

    for job in JOB_KINDS:
        if job.name not in args.jobs.split(","):
            continue
        folder = args.out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        pilot = folder / "pilot"
        run(pilot, job.options)
        attempt = headline_attempt(analyse(load_run(pilot)))
        assert attempt
        more_ms = INJECTED * (attempt.summary.mean_ns("step") or 0) / 1e6
        (folder / "more.json").write_text(json.dumps({"more_ms": more_ms}))
        for pair in range(args.pairs):
            for kind in order(job, pair):
                progress(f"{job.name} {pair} {kind}")
                run(folder / f"{pair:03}-{kind}", options_of(job, kind, more_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
