"""Goodput against known truth, and the expected time of interrupted jobs against simulations.

1. Ten simulated months of a job that fails about every two days: each part within 5 % of what happened.
2. Real jobs that are killed and go on from a checkpoint, by hand and under torchrun, against the script's own log: the
   numbers of new and repeated steps exactly, the time of the latter within 10 %. (What the first steps of an attempt
   take longer is start-up.)
3. The closed formulas of `recommender.failures` against 400 simulations each: within 10 % where interruptions come at a
   constant rate, and shown without a limit where they come in bursts (Weibull gaps of shape 0.7) or regularly (4.0).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, quantiles

from ddlprof.analysis.goodput import GOODPUT_PARTS, Goodput, goodput
from ddlprof.analysis.run import analyse
from ddlprof.analysis.trials import trials_of
from ddlprof.model.trial import Trial
from ddlprof.recommender.failures import completion, daly_interval_s
from ddlprof.store import load_run
from scripts.bench.jobs import JOBS, Limits, print_table, profiled, progress
from scripts.bench.machine import describe
from scripts.lab.interruptions import poisson, simulated_s
from scripts.lab.resumed_log import read_log
from scripts.lab.simulated_month import Job, Truth, write_month

PART_LIMIT, SHARE_LIMIT, TIME_LIMIT, REAL_LIMIT = 0.05, 0.05, 0.1, 0.1
MONTHS, SIMULATIONS, STEPS, KILLS = 10, 400, 120, "25,57,83"
_SMALL = 0.0005
"""The share of the time of all machines below which a part's error in per cent means nothing."""
_HOUR = 3600.0


def main() -> None:
    """Runs all three parts and prints their tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        _months(Path(folder), limits)
        _real_jobs(Path(folder), limits)
    _formulas(limits)
    sys.exit(limits.exit_code())


def _goodput(*runs: Path) -> Goodput:
    trials: list[Trial] = [trial for run in runs for trial in trials_of(analyse(load_run(run)))]
    found = goodput(trials)
    assert found is not None
    return found


def _months(folder: Path, limits: Limits) -> None:
    progress("months")
    months: list[tuple[Truth, Goodput]] = []
    for seed in range(MONTHS):
        truth = write_month(folder / f"month-{seed}", Job(seed, names_files=seed % 2 == 0))
        months.append((truth, _goodput(folder / f"month-{seed}")))
    rows = []
    for part in GOODPUT_PARTS:
        errors = [_error(found.parts_s[part], truth, part) for truth, found in months]
        shares = [truth.parts_s.get(part, 0.0) / sum(truth.parts_s.values()) for truth, _ in months]
        limits.at_most(f"the error of {part}", max(errors), PART_LIMIT)
        rows.append((part, f"{100 * fmean(shares):.2f}", f"{100 * max(errors):.2f}"))
    errors = [abs(found.share / (t.useful_s / sum(t.parts_s.values())) - 1) for t, found in months if found.share]
    limits.at_most("the error of goodput", max(errors), SHARE_LIMIT)
    share = fmean(found.share or 0.0 for _, found in months)
    rows.append(("goodput", f"{100 * share:.2f}", f"{100 * max(errors):.2f}"))
    failures = [len(found.failures) for _, found in months]
    print(f"\n{MONTHS} months with {min(failures)} to {max(failures)} failures each.")
    print_table(("part", "mean share of all machines' time %", "largest error %"), rows)


def _error(found_s: float, truth: Truth, part: str) -> float:
    true_s, total_s = truth.parts_s.get(part, 0.0), sum(truth.parts_s.values())
    difference = abs(found_s - true_s)
    return difference / true_s if true_s > _SMALL * total_s else difference / total_s


def _real_jobs(folder: Path, limits: Limits) -> None:
    rows = []
    script = str(JOBS / "resuming.py")
    for name, launcher in (("by hand", ()), ("torchrun, 2 ranks", ("torchrun", "--standalone", "--nproc-per-node=2"))):
        progress(name)
        work = folder / name.replace(" ", "-")
        work.mkdir()
        runs = _run(work, script, launcher)
        found, (new, again) = _goodput(*runs), read_log(work / "log")
        ranks = found.begun[0].trial.ranks
        steps = found.parts_s["new_steps"] / ranks, found.parts_s["repeated_steps"] / ranks
        repeated = sum(each.repeated for each in found.begun)
        limits.at_most(f"{name}: new steps away", abs(found.new_steps - len(new)), 0)
        limits.at_most(f"{name}: repeated steps away", abs(repeated - len(again)), 0)
        limits.at_most(f"{name}: error of repeated time", abs(steps[1] / sum(again) - 1), REAL_LIMIT)
        rows += [
            (f"{name}: new steps", len(new), found.new_steps, f"{sum(new):.2f}", f"{steps[0]:.2f}"),
            (f"{name}: done again", len(again), repeated, f"{sum(again):.2f}", f"{steps[1]:.2f}"),
        ]
    print_table(("job", "steps in its log", "by ddlprof", "s in its log", "by ddlprof"), rows)


def _run(work: Path, script: str, launcher: tuple[str, ...]) -> list[Path]:
    """Runs the job to its end; returns the run directories."""
    words = [script, str(work), str(STEPS), KILLS]
    if launcher:
        command = [*profiled(work / "run", "--no-calibrate"), "--", *launcher, "--max-restarts=9", *words]
        # Where attempts share the launcher's store, torch 2.13 may let a rank that starts again wait for ever.
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=environment, timeout=300)
        return [work / "run"]
    runs = []
    for number in range(1 + len(KILLS.split(","))):
        runs.append(work / f"run-{number}")
        subprocess.run([*profiled(runs[-1], "--no-calibrate"), *words], check=False, stderr=subprocess.DEVNULL)
    return runs


def _weibull(shape: float, mean_s: float, seed: int) -> Iterator[float]:
    """Moments of interruptions whose gaps are Weibull-distributed: below shape 1 they come in bursts."""
    draw, now = random.Random(seed), 0.0
    while True:
        now += draw.weibullvariate(mean_s / math.gamma(1 + 1 / shape), shape)
        yield now


def _formulas(limits: Limits) -> None:
    progress("formulas")
    rows = []
    for work_h, save_s, restart_s, mtbf_h in (
        (12, 5, 240, 10), (24, 10, 300, 2.5), (72, 60, 600, 10), (100, 30, 300, 1), (1296, 60, 600, 3),
        (8, 30, 900, 0.5),
    ):  # fmt: skip
        mtbf_s, work_s = mtbf_h * _HOUR, work_h * _HOUR
        every_s = daly_interval_s(save_s, mtbf_s)
        found = completion(work_s, every_s, save_s, restart_s, 1 / mtbf_s)
        seen = [simulated_s(work_s, every_s, save_s, restart_s, poisson(1 / mtbf_s, n)) for n in range(SIMULATIONS)]
        others = [
            fmean(simulated_s(work_s, every_s, save_s, restart_s, _weibull(shape, mtbf_s, n)) for n in range(100))
            for shape in (0.7, 4.0)
        ]
        ninth = quantiles(seen, n=10)[8]
        case = f"{work_h} h, saves {save_s} s, starts {restart_s} s, one in {mtbf_h:g} h"
        limits.at_most(f"{case}: error of the mean", abs(found.mean_s / fmean(seen) - 1), TIME_LIMIT)
        limits.at_most(f"{case}: error of the 90th percentile", abs(found.quantile_s(0.9) / ninth - 1), TIME_LIMIT)
        hours = [found.mean_s, fmean(seen), found.quantile_s(0.9), ninth, *others]
        rows.append((case, f"{every_s / 60:.1f}", *(f"{seconds / _HOUR:.2f}" for seconds in hours)))
    print_table(
        ("job", "saves every min", "formula h", "simulated h", "formula 90 % h", "simulated 90 % h", "in bursts h",
         "regular h"), rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
