"""Communication by dimension of the layout against the job's own clock, on four ranks of this machine.

The job times each of its calls itself. Limit: each dimension within 5 % of the step of what the calls took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from ddlprof.analysis.dimensions import column_name
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.store import load_run
from scripts.bench.jobs import Limits, print_table, profiled, run_job
from scripts.bench.machine import describe

LIMIT = 0.05
_TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=4")


def main() -> None:
    """Runs the job and prints its dimensions beside its own account."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        words = [*profiled(directory, "--no-calibrate"), "--", *_TORCHRUN]
        truth = run_job(words, "dimensions", Path(folder) / "truth.json", steps=asked.steps)
        (attempt,) = analyse(load_run(directory))
        _compare(attempt, truth, limits)
    sys.exit(limits.exit_code())


def _compare(attempt: Attempt, truth: object, limits: Limits) -> None:
    assert isinstance(truth, list)
    summary, step_s = attempt.summary, (attempt.summary.mean_ns("step") or 0.0) / 1e9
    rows, summed = [], 0.0
    for dimension in truth[0]:
        own = [np.array(truth[rank.data.rank][dimension])[rank.times.steady] for rank in attempt.ranks]
        own_s = float(np.concatenate(own).mean())
        means = {p: (summary.dimensions[column_name(dimension, p)].mean_ns or 0.0) / 1e9 for p in ("", "straggler")}
        summed += means[""]
        off = abs(means[""] - own_s) / step_s
        numbers = [f"{1e3 * each:.2f}" for each in (own_s, means[""], means["straggler"])]
        rows.append([dimension or "unknown", *numbers, f"{100 * off:.1f} %"])
        limits.at_most(f"{dimension or 'unknown'} off by (share of the step)", off, LIMIT)
    print_table(["dimension", "job's clock ms", "ddlprof ms", "of it straggler ms", "difference / step"], rows)
    comm_s = (summary.mean_ns("comm") or 0.0) / 1e9
    print(f"\nstep {1e3 * step_s:.2f} ms, comm {1e3 * comm_s:.2f} ms, all dimensions {1e3 * summed:.2f} ms")


if __name__ == "__main__":
    main()
