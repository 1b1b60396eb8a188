"""That memory and disk stay bounded: resident set over 100,000 steps, bytes on disk a step, and what a cap keeps.

Limits: the resident set grows by less than 1 MB more than without ddlprof after the first fifth of the run; at most
200 bytes on disk a step and rank and 16 a collective; past the cap every k-th step is kept and sums are exact.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ddlprof.collect.steps.sums import Step
from ddlprof.collect.writer import RankWriter
from ddlprof.model.records import Aggregate, RankHeader, StepRow
from ddlprof.store import RankData, load_run
from scripts.bench.jobs import PLAIN, Limits, print_table, profiled, progress, run_job
from scripts.bench.machine import describe

STEPS, QUICK_STEPS = 100_000, 20_000
DDP_STEPS = 5_000
WARM_SHARE = 0.2
"""Share of the steps that is warm-up."""
ENDS = 10
"""Readings averaged at each end of the stretch over which the resident set must not grow."""
GROWTH_LIMIT_MB, STEP_BYTES_LIMIT, COLLECTIVE_BYTES_LIMIT = 1.0, 200, 16
CAP_SHARE = 0.05
"""Cap of the capped run, of the recorded steps."""
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
        text = directory / f"attempt-{rank.attempt}" / f"rank-{rank.rank}.jsonl"
        times = text.with_suffix(".collectives").stat().st_size
        longest = max(len(line) for line in text.read_bytes().splitlines(keepends=True) if line.startswith(b'["s"'))
        a_step, a_collective = text.stat().st_size / rank.step_count, times / max(1, len(rank.collectives))
        limits.at_least(f"rank {rank.rank}: collectives recorded a step", len(rank.collectives) / rank.step_count, 1)
        limits.at_most(f"rank {rank.rank}: bytes a step", a_step, STEP_BYTES_LIMIT)
        limits.at_most(f"rank {rank.rank}: bytes of the longest step", longest, STEP_BYTES_LIMIT)
        limits.at_most(f"rank {rank.rank}: bytes a collective", a_collective, COLLECTIVE_BYTES_LIMIT)
        rows.append([f"rank {rank.rank}", rank.step_count, len(rank.collectives), f"{a_step:.1f}", longest,
                     f"{a_collective:.1f}"])  # fmt: skip
    print_table(["file", "steps", "collectives", "bytes a step, all lines", "longest step", "bytes a collective"], rows)


def capped(recorded: RankData, folder: Path, limits: Limits) -> None:
    """Writes the recorded rows again, with and without a cap, and compares what is read back."""
    progress("capped")
    rows = recorded.steps.rows()
    cap = max(1, int(CAP_SHARE * len(rows)))
    whole, some = (_written(recorded.header, rows, folder / name, c) for name, c in (("a", len(rows) + 1), ("b", cap)))
    strides = _strides(some, cap)
    limits.at_most("steps kept past the cap that are no k-th step, or the reverse", strides["wrong"], 0)
    limits.at_most("steps lost by the cap", abs(whole.step_count - some.step_count), 0)
    for name in SUMMED:
        limits.at_most(f"error of the sum of {name} under the cap", abs(_sum(whole, name) - _sum(some, name)), 0)
    print_table(
        ["run", "steps", "kept as rows", "in sums", "last stride", "sum of steps, ns"],
        [[name, r.step_count, len(r.steps), sum(a.steps for a in r.aggregates), stride, _sum(r, "step_ns")]
         for name, r, stride in (("no cap", whole, 1), (f"cap of {cap:,}", some, strides["last"]))],
    )  # fmt: skip


def _written(header: RankHeader, rows: list[StepRow], directory: Path, cap: int) -> RankData:
    writer = RankWriter(replace(header, rank=0), cap_steps=cap)
    writer.open(directory)
    for row in rows:
        # As they come from the assembler: without collectives, which the reader would look for.
        writer.step(Step(replace(row, signature=-1, first_seqs=()), [], row.start_ns, True))
    writer.close()
    return load_run(directory).ranks[0]


def _strides(rank: RankData, cap: int) -> dict[str, Any]:
    """The stride in force at the end, and how many steps were kept or left out that the stride does not explain."""
    stride, kept, wrong, previous = 1, 0, 0, -1
    for step, flags in zip(rank.steps["step"].tolist(), rank.steps["flags"].tolist(), strict=True):
        wrong += not flags and step % stride != 0
        wrong += (step - 1) // stride > previous // stride  # a multiple of the stride in between is missing
        kept, previous = kept + 1, step
        if kept == cap:
            stride, kept = 2 * stride, 0
    return {"last": stride, "wrong": wrong}


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
        capped(load_run(long_run).ranks[0], folder, limits)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
