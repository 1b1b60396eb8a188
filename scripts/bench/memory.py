"""That memory and disk stay bounded: resident set over 100,000 steps, bytes on disk a step, and what a budget keeps.

Limits: the resident set grows by less than 1 MB more than without ddlprof after the first fifth of the run; at most
200 bytes on disk a step and rank and 16 a collective; past the budget every k-th step is kept, sums are exact, and the
file is no larger than the budgets of its strides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddlprof.model.blocks import LAYOUTS, SUMS, BlockStream
from ddlprof.model.records import Aggregate, RankHeader, StepRow
from ddlprof.store import RankData, load_run
from ddlprof.writing.retention import Budget
from ddlprof.writing.writer import FinishedStep, RankWriter, rank_files
from scripts.bench.jobs import PLAIN, Limits, print_table, profiled, progress, run_job
from scripts.bench.machine import describe

STEPS, QUICK_STEPS = 100_000, 20_000
DDP_STEPS = 5_000
FLUSH_STEPS = 100
WARM_SHARE = 0.2
"""Share of the steps that is warm-up."""
ENDS = 10
"""Readings averaged at each end of the stretch over which the resident set must not grow."""
GROWTH_LIMIT_MB, STEP_BYTES_LIMIT, COLLECTIVE_BYTES_LIMIT = 1.0, 200, 16
BUDGET_SHARES = 0.05, 0.02
"""The first and each later budget of the bounded run, as shares of what all of its steps take."""
SUMMED = ("step_ns", "compute_ns", "data_ns", "data_fetch_ns", "data_prep_ns", "h2d_ns", "comm_ns", "other_ns",
          "microbatches", "samples")  # fmt: skip


def resident_set(steps: int, folder: Path, limits: Limits) -> Path:
    """Compares a profiled run with one that is not; returns the run directory."""
    rows, growth_mb = [], {}
    for name, words in (("plain", PLAIN), ("ddlprof", profiled(folder / "long"))):
        progress(f"{steps} steps, {name}")
        noted = np.array(run_job(words, "tiny", folder / "truth.json", steps=steps)["resident"], dtype=float)
        step, resident_mb = noted[:, 0], noted[:, 1] / 1e6
        warm = step >= WARM_SHARE * steps
        first, last = resident_mb[warm][:ENDS].mean(), resident_mb[-ENDS:].mean()
        growth_mb[name] = last - first
        slope_kb = 1e6 * np.polyfit(step[warm], resident_mb[warm], 1)[0]
        rows.append([name, f"{first:.2f}", f"{last:.2f}", f"{last - first:+.2f}", f"{slope_kb:+.1f}"])
    extra = growth_mb["ddlprof"] - growth_mb["plain"]
    limits.at_most(f"growth after step {WARM_SHARE * steps:,.0f} beyond the plain run's, MB", extra, GROWTH_LIMIT_MB)
    first = f"{WARM_SHARE * steps:,.0f}"
    print_table(["run", f"MB at step {first}", f"MB at step {steps:,}", "growth MB", "kB a 1,000 steps"], rows)
    return folder / "long"


def disk(steps: int, folder: Path, limits: Limits) -> None:
    """Bytes of a run of two ranks with DDP."""
    progress(f"{steps} steps, two ranks")
    directory = folder / "ddp"
    run_job(profiled(directory, "--nproc-per-node=2"), "tiny", folder / "truth.json", steps=steps)
    rows = []
    for rank in load_run(directory).ranks:
        text, packed = rank_files(directory, rank.attempt, rank.rank)
        found = [each for each in BlockStream(LAYOUTS).take(packed.read_bytes())[0] if each.kind != SUMS]
        times = sum(len(each.whole) - each.times_at for each in found)
        longest = max(each.times_at / each.rows for each in found)
        size = text.stat().st_size + packed.stat().st_size - times
        a_step, a_collective = size / rank.step_count, times / max(1, len(rank.collectives))
        limits.at_least(f"rank {rank.rank}: collectives recorded a step", len(rank.collectives) / rank.step_count, 1)
        limits.at_most(f"rank {rank.rank}: bytes a step", a_step, STEP_BYTES_LIMIT)
        limits.at_most(f"rank {rank.rank}: bytes of the longest step", longest, STEP_BYTES_LIMIT)
        limits.at_most(f"rank {rank.rank}: bytes a collective", a_collective, COLLECTIVE_BYTES_LIMIT)
        rows.append([f"rank {rank.rank}", rank.step_count, len(rank.collectives), f"{a_step:.1f}", f"{longest:.1f}",
                     f"{a_collective:.1f}"])  # fmt: skip
    print_table(
        ["files", "steps", "collectives", "bytes a step, all lines", "longest step", "bytes a collective"], rows
    )


def bounded(recorded: RankData, folder: Path, limits: Limits) -> None:
    """Writes the recorded rows again, with and without a budget, and compares what is read back."""
    progress("bounded")
    rows = recorded.steps.rows()
    whole, whole_bytes = written(recorded.header, rows, folder / "a", Budget(1 << 60, 1 << 60))
    budget = Budget(*(round(share * whole_bytes) for share in BUDGET_SHARES))
    some, some_bytes = written(recorded.header, rows, folder / "b", budget)
    most = budget.first + len(some.strides) * budget.later
    limits.at_least("strides of the bounded run", len(some.strides), 2)
    limits.at_most("bytes of the bounded run beyond those of its strides", max(0, some_bytes - most), STEP_BYTES_LIMIT)
    limits.at_most("steps kept past the budget that are no k-th step, or the reverse", wrongly_kept(some, len(rows)), 0)
    limits.at_most("steps lost by the budget", abs(whole.step_count - some.step_count), 0)
    for name in SUMMED:
        limits.at_most(f"error of the sum of {name} under the budget", abs(_sum(whole, name) - _sum(some, name)), 0)
    print_table(
        ["run", "steps", "MB", "kept as rows", "in sums", "last stride", "sum of steps, ns"],
        [[name, r.step_count, f"{size / 1e6:.2f}", len(r.steps), sum(a.steps for a in r.aggregates),
          max((s.stride for s in r.strides), default=1), _sum(r, "step_ns")]
         for name, r, size in (("no budget", whole, whole_bytes), (f"{budget.first:,} bytes", some, some_bytes))],
    )  # fmt: skip


def written(header: RankHeader, rows: list[StepRow], directory: Path, budget: Budget) -> tuple[RankData, int]:
    """The rows as a rank writes them with this budget and as they are read back, and the bytes of the steps."""
    writer = RankWriter(replace(header, rank=0, attempt=0), budget)
    writer.open(directory)
    for number, row in enumerate(rows):
        # As they come from the assembler: without collectives, which the reader would look for.
        writer.step(FinishedStep(replace(row, signature=-1, first_seqs=()), [], row.start_ns, True))
        if number % FLUSH_STEPS == 0:
            writer.flush()
    writer.close()
    return load_run(directory).ranks[0], rank_files(directory, 0, 0)[1].stat().st_size


def wrongly_kept(rank: RankData, steps: int) -> int:
    """How many steps without a flag were kept or left out that the stride in force does not explain."""
    number = np.arange(steps)
    kept, flagged = np.zeros(steps, dtype=bool), np.zeros(steps, dtype=bool)
    kept[rank.steps["step"]] = True
    flagged[rank.steps["step"][rank.steps["flags"] != 0]] = True
    begins = np.array([each.first_step for each in rank.strides], dtype=np.int64)
    strides = np.array([1, *(each.stride for each in rank.strides)])
    due = number % strides[np.searchsorted(begins, number, side="right")] == 0
    return int(np.count_nonzero((kept != due) & ~flagged))


def _sum(rank: RankData, name: str) -> int:
    """Over the rows and the sums; unmeasured is 0 in both."""
    kept = np.maximum(rank.steps[name], 0).sum()
    return int(kept) + sum(_value(a, name) for a in rank.aggregates)


def _value(aggregate: Aggregate, name: str) -> int:
    return getattr(aggregate, name) or 0


def main() -> int:
    """Runs the three parts, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps")
    args = parser.parse_args()
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        long_run = resident_set(QUICK_STEPS if args.quick else STEPS, folder, limits)
        disk(DDP_STEPS // 5 if args.quick else DDP_STEPS, folder, limits)
        bounded(load_run(long_run).ranks[0], folder, limits)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
