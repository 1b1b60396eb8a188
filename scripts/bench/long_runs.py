"""What long runs take: bytes on disk, and time and memory of `ddlprof report`, for steps that were never trained.

Two jobs are written by the writer of the training process: two ranks x 2,000,000 steps of 25 ms with two collectives,
and a year of one rank of two (30,000,000 steps of a second with 240 collectives each). Prints Markdown for
docs/benchmarks.md. `--steps-of-a-year` and `--quick` make them shorter; writing the year takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import ContextRow, End, Overhead, RankHeader, StepRow
from ddlprof.writing.writer import FinishedStep, RankWriter
from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.machine import describe
from scripts.bench.merge import run

ORIGIN_UNIX_NS = 1_767_261_600_000_000_000
LONG_STEPS, YEAR_STEPS = 2_000_000, 30_000_000
LIMIT_S, LIMIT_MIB, LIMIT_MB = 5.0, 500, 100
"""Of processor time and memory for the report, and of bytes on disk for each rank."""
_CONTEXT_ROWS = 3600
"""As in `ddlprof.collect.helper`: after so many readings of counters the time between two of them doubles."""


class Collectives:
    """The collectives of a step, made when they are asked for: most of a year are not."""

    def __init__(self, step: int, start_ns: int, step_ns: int, many: int) -> None:
        self._step, self._start, self._gap, self._many = step, start_ns, step_ns // (2 * many), many

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._many):
            ready = self._start + (self._many + number) * self._gap
            yield SimpleNamespace(
                group="0", seq=self._step * self._many + number, op="allreduce", bytes=25 << 20, ranks=2, root=None,
                ready=ready, end=ready + self._gap // 2, need=ready + self._gap // 4, exposed=self._gap // 4,
            )  # fmt: skip

    def __len__(self) -> int:
        return self._many


def write_rank(directory: Path, rank: int, steps: int, step_ns: int, many: int) -> float:
    """Writes one rank as the helper thread would; returns the microseconds of the writer for each step."""
    header = RankHeader(rank, 2, rank, 0, "host", "host/boot", 1 + rank, "cpu", "host", 0, ORIGIN_UNIX_NS)
    writer = RankWriter(header)
    writer.open(directory)
    a_second = max(1, 900_000_000 // step_ns)
    context, every = 0, 1
    comm = many * (step_ns // (2 * many) // 4)
    begin = time.perf_counter()
    for number in range(steps):
        start, noise = number * step_ns, (number * 7919) % 1000
        compute = step_ns - comm - 2_000_000 - noise
        row = StepRow(number, start, step_ns, compute, 1_000_000, 400_000, 600_000 - noise, 0, comm,
                      1_000_000 + noise, 1, 32, 0, compute_forward_ns=compute // 3, compute_backward_ns=compute // 2,
                      compute_optimizer_ns=compute - compute // 3 - compute // 2,
                      peak_memory_bytes=40 << 30)  # fmt: skip
        writer.step(FinishedStep(row, Collectives(number, start, step_ns, many), start, True))  # type: ignore[arg-type]
        if number % a_second == 0:
            if number // a_second % every == 0:
                writer.context(ContextRow(start, 50.0, 8 << 30, 4 << 30, None, None, None))
                writer.context(Overhead(number * 50_000, number, number * 20_000, start))
                context += 1
                every = 1 << (context // _CONTEXT_ROWS)
            writer.flush()
    writer.context(End("ok", 0, steps * step_ns))
    writer.close()
    return 1e6 * (time.perf_counter() - begin) / steps


def write_job(directory: Path, ranks: int, steps: int, step_ns: int, many: int) -> list[float]:
    """Writes a run; returns the writer's microseconds a step of each rank."""
    took = [write_rank(directory, rank, steps, step_ns, many) for rank in range(ranks)]
    Manifest(
        name="long", argv=["train.py"], job_id="", created_unix_ns=ORIGIN_UNIX_NS, world_size=2,
        origin_unix_ns=ORIGIN_UNIX_NS, model=ModelFacts("ResNet", 54, 161, 25_557_032, 102_228_128),
        training=TrainingFacts("SGD", 32, 64, 1, "fp32", "ddp", "gloo", loader_workers=1),
    ).write(directory)  # fmt: skip
    return took


def main() -> int:
    """Exit code 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--steps-of-a-year", type=int, default=YEAR_STEPS)
    args = parser.parse_args()
    share = 10 if args.quick else 1
    print(describe())
    limits, rows = Limits(), []
    year = args.steps_of_a_year // share
    jobs = (("2 ranks", 2, LONG_STEPS // share, 25_000_000, 2), ("a year", 1, year, 10**9, 240))
    for name, ranks, steps, step_ns, many in jobs:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "run"
            progress(f"{name}: writing {ranks} x {steps:,} steps")
            took = write_job(directory, ranks, steps, step_ns, many)
            megabytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6 / ranks
            report = run("-m", "ddlprof", "report", str(directory))
            progress(report.output)
        rows.append([f"{name}: {steps:,} steps, {many} collectives in each", f"{megabytes:.1f}", f"{max(took):.1f}",
                     f"{report.wall_s:.1f}", f"{report.cpu_s:.1f}", f"{report.peak_mib:.0f}"])  # fmt: skip
        limits.at_most(f"{name}: MB a rank", megabytes, LIMIT_MB)
        limits.at_most(f"{name}: seconds of processor time of the report", report.cpu_s, LIMIT_S)
        if ranks > 1:
            limits.at_most(f"{name}: MiB of the report", report.peak_mib, LIMIT_MIB)
    print_table(["job", "MB a rank", "writer µs a step", "report s (wall)", "s (CPU)", "MiB"], rows)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
