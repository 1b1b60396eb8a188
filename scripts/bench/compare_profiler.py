"""A second opinion: ddlprof, torch.profiler and the script's own clock on the same script.

The script runs twice alone, once under torch.profiler (a window of steady steps, ranges from the profiler's own events)
and once under ddlprof; it times itself every time, so each profiler is compared with the clock of the run it looked at.

What is comparable: torch.profiler has a range for the loader and for the optimizer, none for forward or backward as
such, so "forward to update" is from the first operation after the batch was there to the end of the optimizer's range;
with several ranks the wait for gradients is inside. It knows no steps either: they are cut at the optimizer's ranges.
A collective lasts from its launch to its end in both, which is not the time that training waited for it.
Limit: ddlprof within 2 % of the step of the script's clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import ddlprof
from scripts.bench.jobs import JOBS, PLAIN, Limits, print_table, profiled, progress, run_job
from scripts.bench.machine import describe

FIRST = 40
"""The first step that torch.profiler looks at."""
AFTER = 5
"""Steps after its window, one of which stops the profiler, before its lasting effect is looked at."""
LIMIT = 0.02
ROWS = {"data_s": "data wait", "compute_s": "forward to update", "step_s": "step"}


@dataclass(frozen=True)
class Case:
    """A job, by its name and arguments. `ranks`: processes."""

    name: str
    ranks: int
    job: dict[str, Any]


CASES = (
    Case("sleeping input, no workers", 1, {"input": "sleep", "stall_ms": 16}),
    Case("burning input, 2 workers", 1, {"input": "burn", "stall_ms": 24, "workers": 2}),
    Case("sleeping input, 2 ranks with DDP", 2, {"input": "sleep", "stall_ms": 8}),
)


@dataclass(frozen=True)
class Runs:
    """Steps by number, in seconds. `events` are the steps of the profiler's window only."""

    alone: pd.DataFrame
    again: pd.DataFrame
    with_torch: pd.DataFrame
    events: pd.DataFrame
    with_ddlprof: pd.DataFrame
    ours: pd.DataFrame
    """Steady steps of rank 0."""
    collective_s: float | None
    """The times of a steady step, by ddlprof."""


def run_all(case: Case, steps: int, window: int, folder: Path) -> Runs:
    """The four runs of a case."""
    launch = [*PLAIN, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    plain = launch if case.ranks > 1 else list(PLAIN)
    folder.mkdir()
    events, run, truth = folder / "events.json", folder / "run", folder / "truth.json"
    under_torch = [*plain, str(JOBS / "under_torch_profiler.py"), str(events), str(FIRST), str(window)]
    under_ddlprof = profiled(run, *([f"--nproc-per-node={case.ranks}"] if case.ranks > 1 else []))
    own = []
    for name, words in (
        ("alone", plain),
        ("torch.profiler", under_torch),
        ("ddlprof", under_ddlprof),
        ("again", plain),
    ):
        progress(f"{case.name}: {name}")
        own.append(pd.DataFrame(run_job(words, "stalls", truth, steps=steps, **case.job)))
    alone, with_torch, with_ddlprof, again = own
    loaded = ddlprof.load(run)
    ours = loaded.steps[loaded.steps["rank"] == 0]
    ours = ours[ours["flags"].fillna("") == ""].assign(compute_s=lambda s: s["compute_s"] + s["comm_s"].fillna(0))
    events_table = pd.DataFrame(json.loads(events.read_text(encoding="utf-8")))
    events_table.index = events_table.index + FIRST
    return Runs(alone, again, with_torch, events_table, with_ddlprof, ours, _collective_s(loaded, ours))


def _collective_s(loaded: ddlprof.api.Run, ours: pd.DataFrame) -> float | None:
    table = loaded.collectives
    mine = table[(table["rank"] == 0) & table["step"].isin(ours["step"])]
    return float(mine["duration_s"].sum() / len(ours)) if len(mine) else None


def comparison(runs: Runs) -> list[list[str]]:
    """Means over the steps that each profiler saw, with the script's clock over the same steps."""
    torch_truth = runs.with_torch.loc[runs.events.index]
    our_truth = runs.with_ddlprof.iloc[runs.ours["step"].to_numpy()]
    rows = []
    for column, name in ROWS.items():
        cells = [f"{1e3 * runs.alone[column][FIRST:].mean():.2f}"]
        for truth, seen in ((torch_truth, runs.events), (our_truth, runs.ours)):
            cells += [f"{1e3 * truth[column].mean():.2f}", f"{1e3 * seen[column].mean():.2f}",
                      f"{difference(truth, seen, column):+.2%}"]  # fmt: skip
        rows.append([name, *cells])
    if runs.collective_s is not None:
        theirs = runs.events["collective_s"].mean()
        rows.append(["collectives", "", "", f"{1e3 * theirs:.2f}", "", "", f"{1e3 * runs.collective_s:.2f}", ""])
    return rows


def difference(truth: pd.DataFrame, seen: pd.DataFrame, column: str) -> float:
    """The difference as a share of the mean step."""
    return float((seen[column].mean() - truth[column].mean()) / truth["step_s"].mean())


def slow_downs(runs: Runs) -> str:
    """Forward to update under each profiler against the script alone, over the same step numbers; and A/A."""
    window = runs.events.index
    after = slice(int(window[-1]) + AFTER, None)

    def ratio(frame: pd.DataFrame, steps: Any) -> str:
        return f"{frame['compute_s'].loc[steps].median() / runs.alone['compute_s'].loc[steps].median():.3f}"

    return (
        "Median time from forward to update against the script alone: "
        f"{ratio(runs.with_torch, window)} while torch.profiler records, {ratio(runs.with_torch, after)} after it has "
        f"stopped, {ratio(runs.with_ddlprof, slice(FIRST, None))} under ddlprof, "
        f"{ratio(runs.again, slice(FIRST, None))} for the script alone once more (what two equal runs differ by)."
    )


def main() -> int:
    """Runs every case, prints a table for each, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    args = parser.parse_args()
    steps, window = (90, 20) if args.quick else (300, 40)
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        for number, case in enumerate(CASES):
            runs = run_all(case, steps, window, Path(name) / str(number))
            print(f"\n### {case.name}")
            print_table(
                ["mean, ms", "script alone", "script under torch.profiler", "torch.profiler", "difference / step",
                 "script under ddlprof", "ddlprof", "difference / step"],
                comparison(runs),
            )  # fmt: skip
            print(f"\n{slow_downs(runs)}")
            our_truth = runs.with_ddlprof.iloc[runs.ours["step"].to_numpy()]
            for column, label in ROWS.items():
                what = f"{case.name}: difference in {label} as a share of the step"
                limits.at_most(what, abs(difference(our_truth, runs.ours, column)), LIMIT)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
