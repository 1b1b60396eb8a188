"""What it costs to watch a run: a job of many steps is written as it would train, and looked at all the while.

    python -m scripts.bench.watch [--steps 100000] [--ranks 2] [--seconds 60]

First the run is attached to late, when all of its steps but the last are there; then it goes on at 100 steps a second.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from ddlprof.live.follower import RunFollower
from ddlprof.live.snapshot import Observer, Snapshot
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import ContextRow, RankHeader, StepRow
from ddlprof.writing.writer import FinishedStep, RankWriter

MS = 1_000_000
STEP_MS = 10
FLUSH_STEPS = 25
LOOK_S = 2.0


class Job:
    """Ranks that write, four times a second of their own time, steps of 10 ms with two all-reduces each."""

    def __init__(self, directory: Path, ranks: int) -> None:
        now = time.time_ns()
        manifest = Manifest("bench", ["bench.py"], "job", now, ranks, now)
        manifest.write(directory)
        header = RankHeader(0, ranks, 0, 0, "host", "node", 1 << 22, "cpu", "host", 0, now, "job")
        self.writers = [RankWriter(replace(header, rank=rank, local_rank=rank)) for rank in range(ranks)]
        self.step = 0
        for writer in self.writers:
            writer.open(directory)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for rank, writer in enumerate(self.writers):
                writer.step(_step(self.step, rank))
            self.step += 1
            if self.step % FLUSH_STEPS == 0:
                for writer in self.writers:
                    if self.step % (4 * FLUSH_STEPS) == 0:
                        time_ns = self.step * STEP_MS * MS
                        writer.context(ContextRow(time_ns, 50.0, 1 << 30, 1 << 28, None, None, None))
                    writer.flush()


def _step(number: int, rank: int) -> FinishedStep:
    start = number * STEP_MS * MS
    late = rank % 2 * MS // 2
    row = StepRow(number, start, 10 * MS, 6 * MS + late, 1 * MS, None, None, 0, 2 * MS - late, 1 * MS, 1, 32, 0)
    collectives = [
        SimpleNamespace(
            group="0", seq=2 * number + which, op="allreduce", bytes=400_000, ranks=2, root=None,
            ready=start + (4 + 3 * which) * MS + late, end=start + (6 + 3 * which) * MS,
            need=start + (5 + 3 * which) * MS, exposed=MS - late // 2,
        )
        for which in (0, 1)
    ]  # fmt: skip
    return FinishedStep(row, collectives, start, True)


def _look(observer: Observer) -> tuple[Snapshot, float]:
    began = time.process_time()
    snapshot = observer.look(time.time_ns())
    while snapshot.read_share < 1:
        snapshot = observer.look(time.time_ns())
    return snapshot, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="how long it goes on, in the job's time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        job = Job(directory, options.ranks)
        job.train(options.steps)
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        observer = Observer(RunFollower(directory))
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        snapshot, attach_s = _look(observer)
        more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        print(f"{snapshot.steps:,} steps x {len(snapshot.ranks)} ranks, {size / 1e6:.0f} MB")
        print(f"attaching: {attach_s:.2f} s of processor time, {more_kib / 1024:.0f} MiB more memory")
        costs = []
        for _ in range(round(options.seconds / LOOK_S)):
            job.train(round(LOOK_S * 1000 / STEP_MS))
            snapshot, cost = _look(observer)
            costs.append(cost)
        costs.sort()
        median, worst = costs[len(costs) // 2], costs[-1]
        print(f"a look: median {median * 1e3:.0f} ms, at most {worst * 1e3:.0f} ms of processor time")
        print(f"one every {LOOK_S:.0f} s is {100 * median / LOOK_S:.1f} % of a core; {snapshot.verdict}")


if __name__ == "__main__":
    main()
