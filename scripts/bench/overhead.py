"""What the hooks cost: on and off in alternating blocks of steps of one process, and by their own clock.

Two runs of a 20 ms step differ by more than the hooks cost, so hooks are compared inside one process: pairs of blocks,
one with and one without hooks, in random order within the pair, with the first steps after a change left out.
The ratio is exp of the 20 % trimmed mean of the pairs' log ratios; its standard error is a bootstrap's over pairs.
The helper thread works for both kinds of block alike, so the blocks do not show it: its share of the processor, which
bounds what it can take from the training thread, comes from a stretch with hooks on throughout and is added.
The last row is a control: hooks off in both blocks of a pair.
Limit: 1.01 for hooks and helper together at steps of 20 ms.
`--distributed`: the same on two ranks of a DDP job, which switch their hooks together; limit 1.02, hooks with helper.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from ddlprof.collect.session import Session, start
from ddlprof.model.options import Options
from scripts.bench.jobs import Limits, print_table, progress

BLOCK_STEPS = 10
SETTLING_STEPS = 3
"""After a change of hooks, left out."""
LAYERS = 25
WIDTH = 64
FIRST_STEPS = 30
"""Before anything is timed: lazy initialisation, and ddlprof's look at the model."""
LIMIT_STEP_MS, LIMIT, DISTRIBUTED_LIMIT = 20, 1.01, 1.02
DISTRIBUTED = "RANK" in os.environ
"""This process is one of the ranks that `--distributed` started."""
HELPER_THREAD = "ddlprof"
TRIMMED = 0.2
RESAMPLES = 2000


class Wait(nn.Module):
    """Sleeps, as a device that computes would let the training thread wait."""

    seconds = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seconds > 0:
            time.sleep(self.seconds)
        return x


class Rows(Dataset[torch.Tensor]):
    """Random rows, without end as far as this benchmark is concerned."""

    def __init__(self, rows: int) -> None:
        self.sample = torch.randn(rows, WIDTH)

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Job:
    """A training loop of steps of about `step_ms`: half of it computing, the rest sleeping."""

    def __init__(self, step_ms: float, workers: int) -> None:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.wait = Wait()
        self.model: nn.Module = nn.Sequential(*layers, self.wait)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.workers = workers
        rows = 1
        while rows < 2**16 and self._compute_s(rows) < step_ms / 2000:
            rows *= 2
        self.rows = rows
        self.wait.seconds = step_ms / 1000 - self._compute_s(rows)
        if DISTRIBUTED:
            self.model = DistributedDataParallel(self.model)

    def _compute_s(self, rows: int) -> float:
        batch = torch.randn(rows, WIDTH)
        times = []
        for _ in range(10):
            begin = time.perf_counter()
            self.train_on(batch)
            times.append(time.perf_counter() - begin)
        return min(times)  # on a busy machine the others say little of the job

    def batches(self) -> Iterator[torch.Tensor]:
        """A new iteration over the data."""
        return iter(DataLoader(Rows(self.rows), batch_size=None, num_workers=self.workers))

    def train_on(self, batch: torch.Tensor) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def steps_s(self, batches: Iterator[torch.Tensor], steps: int) -> float:
        """Seconds that so many steps take."""
        begin = time.perf_counter()
        for batch in itertools.islice(batches, steps):
            self.train_on(batch)
        return time.perf_counter() - begin


class Switch(Protocol):
    """What installs hooks and takes them back, such as a session."""

    def resume(self) -> None:
        """Installs the hooks."""

    def pause(self) -> None:
        """Takes the hooks back."""


@dataclass(frozen=True)
class Result:
    """What one kind of step showed."""

    step_s: float
    """The step with hooks off."""
    ratio: float
    ratio_se: float
    hook_s: float
    """The time in hooks in a step, by the recorder's own clock."""
    helper_share: float
    """Processor time of the helper thread over wall time."""

    @property
    def total(self) -> float:
        return self.ratio + self.helper_share


@dataclass(frozen=True)
class Kind:
    """One kind of step. `control`: hooks are off in both blocks of a pair, so the ratio should be 1."""

    step_ms: int
    workers: int
    steps: int
    control: bool = False


KINDS = (
    Kind(2, 0, 6000),
    Kind(5, 0, 4000),
    Kind(20, 0, 4000),
    Kind(20, 2, 4000),
    Kind(100, 0, 600),
    Kind(20, 0, 4000, control=True),
)
DISTRIBUTED_KINDS = (Kind(20, 0, 4000), Kind(20, 0, 4000, control=True))


def measure(kind: Kind, quick: bool, folder: Path) -> Result:
    """Half of the steps with hooks on and half with hooks off, then a quarter more with hooks on throughout."""
    steps = kind.steps // 10 if quick else kind.steps
    options = Options(out=tempfile.mkdtemp(dir=folder), quiet=True, card=False)
    session = start(options, "bench", ["bench"])
    if DISTRIBUTED:
        dist.init_process_group("gloo")
    job = Job(kind.step_ms, kind.workers)
    hooked = job.batches()  # its workers are timed; those of the other iteration must not be
    job.steps_s(hooked, FIRST_STEPS)
    session.pause()
    plain = job.batches()
    job.steps_s(plain, FIRST_STEPS)

    def block(hooks: bool) -> float:
        return block_s(session, hooks and not kind.control, job, hooked if hooks else plain)

    on, off = blocks(block, pairs=max(10, steps // (2 * BLOCK_STEPS)))
    session.resume()
    hook_s, helper_share = _own_clock(session, lambda: job.steps_s(hooked, max(200, steps // 4)))
    session.finish("ok", 0)
    if DISTRIBUTED:
        dist.destroy_process_group()
    return Result(statistics.median(off), *ratio_of(on, off), hook_s, helper_share)


def block_s(switch: Switch, on: bool, job: Job, batches: Iterator[torch.Tensor]) -> float:
    """Seconds a step of one block, with hooks or without; hooks are off before and after it."""
    switch.resume()  # also before a block without: patching empties the interpreter's caches
    if not on:
        switch.pause()
    job.steps_s(batches, SETTLING_STEPS)
    seconds = job.steps_s(batches, BLOCK_STEPS)
    switch.pause()
    return seconds / BLOCK_STEPS


def ratio_of(on: list[float], off: list[float]) -> tuple[float, float]:
    """The ratio of paired blocks, and its standard error."""
    logs = [math.log(a / b) for a, b in zip(on, off, strict=True)]
    return math.exp(_trimmed_mean(logs)), _bootstrap_se(logs)


def blocks(block: Callable[[bool], float], pairs: int) -> tuple[list[float], list[float]]:
    """Seconds a step of each block with and without hooks."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    order = random.Random(0)
    for _ in range(pairs):
        first = order.random() < 0.5
        for hooks in (first, not first):
            seconds[hooks].append(block(hooks))
    return seconds[True], seconds[False]


def _own_clock(session: Session, train: Callable[[], object]) -> tuple[float, float]:
    """Seconds in hooks a step, and the helper thread's share of the processor, while `train` runs."""
    thread = next(t.ident for t in threading.enumerate() if t.name == HELPER_THREAD)
    helper_clock = time.pthread_getcpuclockid(thread or 0)
    before, cpu, wall = session.helper.cost(), time.clock_gettime(helper_clock), time.perf_counter()
    train()
    cpu, wall = time.clock_gettime(helper_clock) - cpu, time.perf_counter() - wall
    after = session.helper.cost()
    timed_steps = max(1, after.hook_steps - before.hook_steps)
    return (after.hook_ns - before.hook_ns) / timed_steps / 1e9, cpu / wall


def _trimmed_mean(values: list[float]) -> float:
    cut = int(TRIMMED * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _bootstrap_se(values: list[float]) -> float:
    """The standard error of the trimmed mean; of a log ratio near 0 it is that of the ratio."""
    order = random.Random(0)
    return statistics.stdev(_trimmed_mean(order.choices(values, k=len(values))) for _ in range(RESAMPLES))


def table_row(kind: Kind, result: Result) -> list[str]:
    """One line of the table; hooks that were off in both blocks have no cost to show."""
    blocks = [f"{1e3 * result.step_s:.2f}", f"{result.ratio:.4f} ± {result.ratio_se:.4f}"]
    difference = f"{1e6 * (result.ratio - 1) * result.step_s:.0f}"
    if kind.control:
        return [f"{kind.step_ms} ms, off / off", str(kind.workers), *blocks, difference, "", "", ""]
    own = [f"{1e6 * result.hook_s:.0f}", f"{result.helper_share:.2%}", f"{result.total:.4f}"]
    return [f"{kind.step_ms} ms", str(kind.workers), *blocks, difference, *own]


def measure_on_two_ranks(kind: Kind, quick: bool, folder: Path) -> Result:
    """`measure` in a DDP job under torch's launcher. Each kind needs a job: gloo hangs if it is initialised again.

    Raises CalledProcessError if the job fails.
    """
    result = folder / "result.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [f"--rank-of={DISTRIBUTED_KINDS.index(kind)}", f"--result={result}", *(["--quick"] if quick else [])]
    subprocess.run([*launcher, __file__, *words], check=True)
    return Result(**json.loads(result.read_text(encoding="utf-8")))


def main() -> int:
    """Measures every kind of step, prints the table, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--distributed", action="store_true", help="two ranks of a DDP job")
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        if args.rank_of is not None:
            result = measure(DISTRIBUTED_KINDS[args.rank_of], args.quick, Path(name))
            if os.environ["RANK"] == "0":  # the ranks wait for each other: their steps take the same time
                args.result.write_text(json.dumps(asdict(result)), encoding="utf-8")
            return 0
        if args.kind is not None:
            result = measure(KINDS[args.kind], args.quick, Path(name))
            args.result.write_text(json.dumps(asdict(result)), encoding="utf-8")
            return 0
        return report(args.distributed, args.quick, Path(name))


def report(distributed: bool, quick: bool, folder: Path) -> int:
    """The table, and the exit code."""
    from scripts.bench.machine import describe  # asks today's ddlprof, which `overhead_versions` replaces

    print(describe())
    limits, rows = Limits(), []
    limit = DISTRIBUTED_LIMIT if distributed else LIMIT
    for kind in DISTRIBUTED_KINDS if distributed else KINDS:
        progress(f"steps of {kind.step_ms} ms, {kind.workers} workers")
        result = (measure_on_two_ranks if distributed else measure)(kind, quick, folder)
        if kind.step_ms == LIMIT_STEP_MS and not kind.control:
            what = f"{kind.step_ms} ms, {kind.workers} workers: ratio with the helper's share"
            limits.at_most(what, result.total, limit)
        rows.append(table_row(kind, result))
    print_table(
        ["step", "workers", "step ms, hooks off", "on / off", "µs a step, from on / off", "µs a step, own clock",
         "helper thread", "on / off with helper"],
        rows,
    )  # fmt: skip
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
