"""How well the classes agree with the script's own clock while its input stalls in known ways.

Each row is one run of `jobs/stalls.py` under `ddlprof run`. Means are over exactly the steps that ddlprof calls steady.
Limits: the mean of every class within 2 % of the mean step; fetch (blocked) or preparation (busy) carries at least
90 % of the stall: of what was injected where the training process loads, of the wait for data where workers do.
For real reads the truth is the reading thread's own wall time less its processor time, and less the time it waited
for a processor: on a machine that has fewer cores than the job has processes, that is no fault of the storage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import ddlprof
from scripts.bench.jobs import Limits, burning, print_table, profiled, progress, run_job
from scripts.bench.machine import describe

CLASSES = ("compute", "data", "other")
CLASS_LIMIT = 0.02
CARRIED_LIMIT = 0.9
HIDDEN = 0.02
"""Share of the step: a stall that workers hide this well leaves nothing to carry."""
FILES, FILE_BYTES = 256, 2**17
COLD_SHARE = 0.9
"""Share of the bytes read that must have come from the disk for a read to be called cold."""


@dataclass(frozen=True)
class Case:
    """One run. `part`: where the stall belongs."""

    name: str
    part: str
    workers: int = 0
    busy: bool = False
    job: dict[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """Stalls are chosen so that the workers cannot hide them."""
    found = []
    for workers in (0, 2, 4):
        scale = max(1, workers)
        sleep = {"input": "sleep", "stall_ms": 16 * scale}
        burn = {"input": "burn", "stall_ms": 12 if workers == 0 else 24}
        read = {"input": "read", "reads": 1 if workers == 0 else 2 * workers}
        found += [
            Case("sleep", "fetch", workers, job=sleep),
            Case("burn, cores idle", "prep", workers, job=burn),
            Case("burn, cores busy", "prep", workers, busy=True, job=burn),
            Case("read, cold", "fetch", workers, job={**read, "cold": 1}),
            Case("read, warm", "prep", workers, job=read),
        ]
    accumulated = {"input": "sleep", "stall_ms": 8, "accumulate": 2}
    found.append(Case("sleep, 2 micro-batches", "fetch", job=accumulated))
    found.append(
        Case("sleep, evaluation every 20", "fetch", job={"input": "sleep", "stall_ms": 16, "evaluate_every": 20})
    )
    return found


def run_case(case: Case, steps: int, folder: Path, files: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The steps of a run as ddlprof and as the script saw them."""
    directory = Path(tempfile.mkdtemp(dir=folder))
    arguments = {"workers": case.workers, "steps": steps, **case.job}
    if case.job["input"] == "read":
        arguments["files"] = files
    with burning() if case.busy else contextlib.nullcontext():
        truth = run_job(profiled(directory / "run"), "stalls", directory / "truth.json", **arguments)
    return ddlprof.load(directory / "run").steps, pd.DataFrame(truth)


@dataclass(frozen=True)
class Result:
    """Means over the compared steps, in seconds."""

    steps: int
    step_s: float
    truth_s: dict[str, float]
    ours_s: dict[str, float]
    stall_s: float
    """What fetch or preparation has to carry."""
    part_s: float

    @property
    def worst_class(self) -> str:
        return max(CLASSES, key=self.error)

    def error(self, name: str) -> float:
        """The error as a share of the mean step."""
        return abs(self.ours_s[name] - self.truth_s[name]) / self.step_s

    @property
    def carried(self) -> float | None:
        """Share of the stall; None where workers hide it."""
        return self.part_s / self.stall_s if self.stall_s > HIDDEN * self.step_s else None


def compare(case: Case, ours: pd.DataFrame, truth: pd.DataFrame) -> Result:
    """Compares over the steady steps."""
    steady = ours[ours["flags"].fillna("") == ""]
    own = truth.iloc[steady["step"].to_numpy()]
    return Result(
        steps=len(steady),
        step_s=own["step_s"].mean(),
        truth_s={name: own[f"{name}_s"].mean() for name in CLASSES},
        ours_s={name: steady[f"{name}_s"].mean() for name in CLASSES},
        stall_s=stall_to_carry_s(case, own),
        part_s=steady[f"data_{case.part}_s"].mean(),
    )


def stall_to_carry_s(case: Case, own: pd.DataFrame) -> float:
    """Mean of what fetch or preparation has to carry.

    Where the training process loads, it is what was injected: the sleep asked for (not what a loaded machine makes
    of it), the wall time of the burn, and of a read the time in which the thread was blocked, or was not.
    Where workers load, it is the wait for data; of a read, the same share of the wait as of the reading.
    """
    wall_s = float(own["made_wall_s"].mean())
    blocked_s = wall_s - float(own["made_cpu_s"].mean() + own["made_queued_s"].mean())
    read_s = blocked_s if case.part == "fetch" else wall_s - blocked_s
    if case.workers:
        return float(own["data_s"].mean()) * (read_s / wall_s if case.job["input"] == "read" else 1)
    if case.job["input"] == "sleep":
        return float(case.job["stall_ms"]) / 1000 * int(case.job.get("accumulate", 1))
    return read_s if case.job["input"] == "read" else wall_s


def not_as_stated(case: Case, truth: pd.DataFrame) -> str:
    """Why a read was not as cold or as warm as it should have been; empty if it was."""
    if case.job["input"] != "read":
        return ""
    wanted = len(truth) * 8 * case.job["reads"] * FILE_BYTES
    share = truth["made_disk_bytes"].sum() / wanted
    if case.job.get("cold") and share < COLD_SHARE:
        return f"only {share:.0%} of the bytes came from the disk"
    if not case.job.get("cold") and share > 1 - COLD_SHARE:
        return f"{share:.0%} of the bytes came from the disk"
    return ""


def check(case: Case, result: Result, limits: Limits) -> None:
    """The stated limits of one row."""
    where = f"{case.name}, {case.workers} workers"
    for name in CLASSES:
        limits.at_most(f"{where}: error of {name} as a share of the step", result.error(name), CLASS_LIMIT)
    if result.carried is not None:
        limits.at_least(f"{where}: share of the stall in {case.part}", result.carried, CARRIED_LIMIT)


def check_evaluation(ours: pd.DataFrame, truth: pd.DataFrame, limits: Limits) -> str:
    """The steps with an evaluation: found without exception, and its time is in `other`."""
    flagged = ours["flags"].fillna("").str.contains("evaluation").to_numpy()
    own = truth.iloc[ours["step"].to_numpy()]
    wrong = int(np.count_nonzero(flagged != own["evaluated"].to_numpy()))
    limits.at_most("steps wrongly flagged as evaluation, or not flagged", wrong, 0)
    means = own[flagged].mean()
    errors = {name: abs(ours[flagged][f"{name}_s"].mean() - means[f"{name}_s"]) / means["step_s"] for name in CLASSES}
    for name, error in errors.items():
        limits.at_most(f"steps with an evaluation: error of {name} as a share of the step", error, CLASS_LIMIT)
    return (
        f"Of {int(own['evaluated'].sum())} steps with an evaluation, {int(flagged.sum())} were flagged; over them the "
        f"worst class is {max(errors.values()):.2%} of the step off."
    )


def table_row(case: Case, result: Result) -> list[str]:
    """One line of the table."""
    worst = result.worst_class
    carried = "hidden" if result.carried is None else f"{result.carried:.1%}"
    return [
        case.name,
        str(case.workers),
        str(result.steps),
        f"{1e3 * result.step_s:.2f}",
        *(f"{1e3 * result.truth_s[name]:.2f} / {1e3 * result.ours_s[name]:.2f}" for name in CLASSES),
        f"{result.error(worst):.2%} ({worst})",
        f"{1e3 * result.stall_s:.2f} / {1e3 * result.part_s:.2f} ({case.part})",
        carried,
    ]


def write_files(folder: Path) -> None:
    """Files for the reading cases, on the disk and clean, so that dropping them from the page cache works."""
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"{number:03d}").open("wb") as file:
            file.write(os.urandom(FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())


def main() -> int:
    """Runs every case, prints the table, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    args = parser.parse_args()
    steps = 60 if args.quick else 160
    limits, rows, remarks, queued = Limits(), [], [], 0.0
    print(describe())
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        write_files(folder / "files")
        for case in cases():
            if args.only not in case.name:
                continue
            progress(f"{case.name}, {case.workers} workers")
            ours, truth = run_case(case, steps, folder, folder / "files")
            reason = not_as_stated(case, truth)
            if reason:
                remarks.append(f"Left out: {case.name}, {case.workers} workers, because {reason}.")
                continue
            result = compare(case, ours, truth)
            check(case, result, limits)
            rows.append(table_row(case, result))
            queued = max(queued, truth["made_queued_s"].sum() / truth["made_wall_s"].sum())
            if case.job.get("evaluate_every"):
                remarks.append(check_evaluation(ours, truth, limits))
    remarks.append(f"Waiting for a processor took up to {queued:.0%} of the time of reading.")
    print_table(
        ["input", "workers", "steps", "step ms", *(f"{c} ms, script / ddlprof" for c in CLASSES), "worst class",
         "stall ms / its part", "carried"],
        rows,
    )  # fmt: skip
    for remark in remarks:
        print(f"\n{remark}")
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
