"""How often `ddlprof compare` calls identical runs different, and how often it finds a step that is 5 % longer.

All runs are real, each a process of its own. A pair has two runs that are the same (A and B), and one for each class
in which the step takes 5 % longer. Machines drift, so the runs of a pair are made in a row, in alternating order.
Runs are kept in `--out`: those that are there are not made again, so the benchmark can be stopped and continued, and
`--pairs 0` repeats the analysis alone. `--out/means.csv` has the means of every run.

Stated limits: of the identical pairs, 5 % are called different (the step or any class of it); of the longer steps, at
least 90 % are found: the step, that class or a part of it is called slower, which the verdict then names. Where other
work keeps the processors busy, runs differ by more than that, and nothing of the kind can be found: the last table
shows it.

`--busy` keeps every core busy with another process, while all runs but the first are made. Single runs then differ too
much for 5 %; what is found is found in the step without what its main thread waited for a processor ("own").
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from scipy.stats import binomtest

from ddlprof.analysis.compare import FASTER, SLOWER
from ddlprof.analysis.run import analyse, headline_attempt
from ddlprof.model.classes import CLASSES, PARTS
from ddlprof.report.compare.data import ComparisonData, build
from ddlprof.report.run.formats import Analysed
from ddlprof.store import load_run
from scripts.bench.jobs import JOBS, Limits, busy_cores, print_table, progress
from scripts.bench.machine import describe

LONGER = 0.05
CALLED, FOUND = 0.05, 0.90
GROUP = 5
A, B = "A", "B"
DEFAULTS = {"data-ms": 1.6, "compute-ms": 4.0, "other-ms": 0.8}


@dataclass(frozen=True)
class Job:
    """A way to run `jobs/regular.py`."""

    name: str
    options: dict[str, float]
    longer: dict[str, tuple[str, float]]
    """For each class, the option that makes it longer, and how much of that is 1 ms a step."""


KINDS = (
    Job("sleeping", {}, {"data": ("data-ms", 1), "compute": ("compute-ms", 1), "other": ("other-ms", 1)}),
    Job("loader-bound", {"workers": 4, "data-ms": 28}, {"data": ("data-ms", 4)}),
    Job("computing", {"compute-ms": 0, "burn": 120}, {"other": ("other-ms", 1)}),
)


def options_of(job: Job, kind: str, more_ms: float) -> dict[str, float]:
    """The options of a run: A, B (the same), or the class that takes `more_ms` longer."""
    if kind in (A, B):
        return job.options
    option, each = job.longer[kind]
    return job.options | {option: job.options.get(option, DEFAULTS.get(option, 0.0)) + each * more_ms}


def order(job: Job, pair: int) -> list[str]:
    """The runs of a pair as they are made."""
    first, *rest = job.longer
    return [first, A, B, *rest][:: 1 if pair % 2 == 0 else -1]


def make_run(directory: Path, options: dict[str, float]) -> None:
    """Makes one run, unless it is there; ends this process if it fails."""
    if finished(directory):
        return
    shutil.rmtree(directory, ignore_errors=True)
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


def finished(directory: Path) -> bool:
    """Whether the run is there and whole."""
    return (directory / "done").exists()


@cache
def read(directory: Path) -> Analysed:
    """A run as the command reads it."""
    run = load_run(directory)
    return Analysed(run, analyse(run), 0)


def compared(a: Sequence[Path], b: Sequence[Path]) -> ComparisonData:
    """What the command says of these runs."""
    return build(list(map(read, a)), list(map(read, b)), [])


def make_runs(job: Job, folder: Path, pairs: int, longer: float, busy: bool) -> float:
    """Makes the runs that are missing; returns by how many milliseconds the longer steps are longer."""
    folder.mkdir(parents=True, exist_ok=True)
    make_run(folder / "first", job.options)
    step_s = compared([folder / "first"], [folder / "first"]).step.a_s or 0.0
    more_ms = 1e3 * longer * step_s
    with busy_cores() if busy else nullcontext():
        for pair in range(pairs):
            progress(f"{job.name}: pair {pair + 1} of {pairs}")
            for kind in order(job, pair):
                make_run(folder / f"{pair:03}-{kind}", options_of(job, kind, more_ms))
    return more_ms


def differs(data: ComparisonData) -> tuple[bool, bool, bool]:
    """Whether the step differs, any class or part of one, or the step without waiting for a processor."""
    words = [row.word in (FASTER, SLOWER) for row in data.rows]
    return words[0], any(words[1:]), data.step.own is not None and data.step.own.word in (FASTER, SLOWER)


def slower(data: ComparisonData, name: str) -> tuple[bool, bool, bool]:
    """Whether the step is slower, that class or a part of it, or the step without waiting for a processor."""
    slower = {row.name for row in data.rows if row.word == SLOWER}
    return (
        "step" in slower,
        not slower.isdisjoint((name, *PARTS.get(name, ()))),
        data.step.own is not None and data.step.own.word == SLOWER,
    )


def share(flags: Sequence[bool]) -> str:
    """How many of them are true, with the interval of 95 % of Clopper and Pearson."""
    if not flags:
        return ""
    low, high = binomtest(sum(flags), len(flags)).proportion_ci()
    return f"{sum(flags)} of {len(flags)} ({100 * low:.0f}-{100 * high:.0f} %)"


def table_row(job: Job, folder: Path, kind: str, group: int, limits: Limits | None) -> list[str]:
    """One kind of pair, in groups of so many runs a side; `limits`: those that hold on a quiet machine."""
    whole = sorted(path.name[:3] for path in folder.glob(f"*-{kind}") if finished(path))
    pairs = [pair for pair in whole if finished(folder / f"{pair}-{A}")]
    groups = [pairs[at : at + group] for at in range(0, len(pairs) - group + 1, group)]
    found = [compared(*([folder / f"{pair}-{each}" for pair in of] for each in (A, kind))) for of in groups]
    judged = [differs(data) if kind == B else slower(data, kind) for data in found]
    either = [any(each) for each in judged]
    if limits and judged and group == 1 and job.name == KINDS[0].name:
        what = "identical runs that are called different" if kind == B else f"longer {kind} that is found"
        (limits.at_most if kind == B else limits.at_least)(
            what, sum(either) / len(either), CALLED if kind == B else FOUND
        )
    grew = [100 * (data.step.mean.share or 0.0) for data in found if data.step.mean]
    return [
        f"{job.name}, {'identical' if kind == B else f'{kind} longer'}",
        str(group),
        f"{statistics.median(grew):+.1f} %" if grew else "",
        *(share([each[place] for each in judged]) for place in (0, 1, 2)),
        share(either),
    ]


def runs_differ(job: Job, folder: Path) -> list[str]:
    """How runs that are the same differ from each other: standard deviations in per cent of the step."""
    found = [
        (read(path), read(other))
        for path in sorted(folder.glob(f"*-{A}"))
        if finished(path) and finished(other := path.with_name(path.name.replace(f"-{A}", f"-{B}")))
    ]
    cells = []
    for name in ("step", *CLASSES):
        shares = []
        for one, two in found:
            a, b = one.report.times[name].mean_s, two.report.times[name].mean_s
            if a is not None and b is not None:
                shares.append((b - a) / (one.report.times["step"].mean_s or 1.0))
        cells.append(f"{100 * (statistics.fmean(each**2 for each in shares) / 2) ** 0.5:.2f}" if shares else "")
    attempts = [headline_attempt(run.attempts) for pair in found for run in pair]
    waited = [each for attempt in attempts if attempt and (each := attempt.queued_share) is not None]
    return [job.name, *cells, f"{100 * statistics.median(waited):.1f} %" if waited else ""]


def write_means(out: Path) -> None:
    """The means of every run that is there."""
    names = ("step", *CLASSES)
    with (out / "means.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job", "run", "steady_steps", "cpu_percent", *(f"{name}_s" for name in names)])
        for done in sorted(out.glob("*/*/done")):
            report = read(done.parent).report
            times = [report.times[name].mean_s for name in names]
            head = [done.parts[-3], done.parts[-2], report.steady_steps, report.context.cpu_percent]
            writer.writerow([*head, *times])


def main() -> int:
    """Makes the runs, prints the tables, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="of each job; five runs of ten seconds each")
    parser.add_argument("--jobs", default=KINDS[0].name, help=f"some of {', '.join(job.name for job in KINDS)}")
    parser.add_argument("--steps", type=int, default=540, help="of each run")
    parser.add_argument("--longer", type=float, default=100 * LONGER, metavar="PERCENT", help="of the step")
    parser.add_argument("--busy", action="store_true", help="beside a process on every core that does nothing else")
    parser.add_argument("--out", type=Path, default=Path("compare-runs"), help="directory for the runs")
    args = parser.parse_args()
    print(describe())
    steps = {"steps": args.steps}
    jobs = [replace(job, options=job.options | steps) for job in KINDS if job.name in args.jobs.split(",")]
    limits, rows, differences = Limits(), [], []
    for job in jobs:
        folder = args.out / job.name
        more_ms = make_runs(job, folder, args.pairs, args.longer / 100, args.busy)
        print(f"\n{job.name}: the longer steps take {more_ms:.3f} ms more, {args.longer:g} % of a first run's step.")
        rows += [
            table_row(job, folder, kind, group, None if args.busy else limits)
            for group in (1, GROUP)
            for kind in (B, *job.longer)
        ]
        differences.append(runs_differ(job, folder))
    write_means(args.out)
    print_table(["pairs", "runs a side", "step grew (median)", "step", "class", "own", "any"], rows)
    print_table(["equal runs differ, % of the step", "step", *CLASSES, "waited for a processor"], differences)
    print("\nWhere runs waited for a processor for more than 2 % of the time, other work decides what can be found.")
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
