"""What the helper thread takes: its share of a core at steps of 20 ms, where that goes, and how many calls it makes.

    python -m scripts.bench.helper

The job is that of `scripts.bench.overhead`, without and with two workers of its loader, and once with its wait between
two steps: the stack is looked at often then. The share is the thread's own
processor time, by the system's clock of the thread, over the wall time. Where it goes is timed inside the thread by
its own processor time, around its parts; what is left is waking up. The calls are those of Python functions of
ddlprof, and of C functions that they call, for the events of a plain step: the same on any machine.
`--device`: a launch-bound training on the simulated device, whose calls hold the interpreter's lock as long as CUDA's
do; the histogram says how much longer than usual its steps take, without the time in which the system had no processor
for them, and how long the helper thread computes between two waits: so long the training may wait for the lock.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from ddlprof.base import real_time
from ddlprof.collect.helper import Helper
from ddlprof.collect.session import Session, start
from ddlprof.model.options import Options
from scripts.bench.calls import Calls
from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.machine import describe
from scripts.bench.overhead import FIRST_STEPS, HELPER_THREAD, Job

STEP_MS = 20
LIMIT = 0.003
"""Of a core."""
COUNTED_STEPS = 200
FIRST_S = 3
"""Left out."""
SETTLING_S = 1.5
"""After the hooks came back, modules are looked for once more."""
LAUNCHES, PYTHON_BETWEEN, KERNEL_NS = 80, 800, 1000
"""Of a step on the device: kernels, rounds of an empty loop before each, and how long one takes."""
ASK_NS = 2000
"""What the driver takes to answer about an event, beside the simulation's own 2 µs."""
PERCENTS = (50, 90, 99, 99.9)
BUCKETS_US = (50, 100, 200, 500, 1000, 2000, 5000)
STALL_LIMIT_US = 500
PARTS = (
    ("stack samples", "_sample_stack"),
    ("events to rows", "_drain"),
    ("peak memory", "_read_peak_memory"),
    ("once a second", "_slow_records"),
    ("polling", "poll"),
    ("flush", "writer.flush"),
    ("rows to lines", "writer.step"),
)
"""Names of the parts, and the methods of the helper that do them. A part inside another counts by itself only."""


class Parts:
    """Processor time of the helper's parts, each without those inside it."""

    def __init__(self, helper: Helper) -> None:
        self.ns: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inside: list[int] = []
        for name, path in PARTS:
            *owners, method = path.split(".")
            owner: Any = helper
            for each in owners:
                owner = getattr(owner, each)
            setattr(owner, method, self._timed(name, getattr(owner, method)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0)
            begin = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time_ns() - begin
                self.ns[name] += took - self._inside.pop()
                self.calls[name] += 1
                if self._inside:
                    self._inside[-1] += took

        return timed


class Share:
    """The helper thread's processor time over wall time while `train` runs."""

    def __init__(self, train: Callable[[], object]) -> None:
        thread = next(t.ident for t in threading.enumerate() if t.name == HELPER_THREAD)
        clock = time.pthread_getcpuclockid(thread or 0)
        cpu, begin = time.clock_gettime(clock), time.perf_counter()
        train()
        self.cpu_s, self.wall_s = time.clock_gettime(clock) - cpu, time.perf_counter() - begin

    @property
    def of_core(self) -> float:
        """One is a whole core."""
        return self.cpu_s / self.wall_s


def begin(folder: Path) -> Session:
    """A session that writes below `folder`."""
    return start(Options(out=tempfile.mkdtemp(dir=folder), quiet=True, card=False), "bench", ["bench"])


@dataclass(frozen=True)
class Kind:
    """A training that is measured. `outside`: it waits between two steps, and not in a module."""

    name: str
    workers: int = 0
    outside: bool = False


KINDS = (
    Kind("no workers"),
    Kind("two workers", workers=2),
    Kind("half of the step in other, so that its lines are looked for", outside=True),
)


def measure(kind: Kind, steps: int, folder: Path) -> tuple[float, list[list[str]]]:
    """The share of a core, and where it goes in lines of a table."""
    session = begin(folder)
    job = Job(STEP_MS, kind.workers)
    outside_s = max(0.0, job.wait.seconds) if kind.outside else 0.0
    job.wait.seconds -= outside_s
    batches = job.batches()

    def train(number: int) -> None:
        for batch in itertools.islice(batches, number):
            job.train_on(batch)
            if outside_s:
                time.sleep(outside_s)

    train(FIRST_STEPS + FIRST_S * 1000 // STEP_MS)  # the first seconds are those of the look at the model
    share = Share(lambda: train(steps))
    parts = Parts(session.helper)
    timed = Share(lambda: train(steps // 2))
    session.finish("ok", 0)
    rows = [
        [name, f"{parts.calls[name] / timed.wall_s:.1f}", f"{parts.ns[name] / max(1, parts.calls[name]) / 1000:.0f}",
         f"{parts.ns[name] / 1e9 / timed.wall_s:.3%}"]
        for name, _ in PARTS
    ]  # fmt: skip
    rest = timed.cpu_s - sum(parts.ns.values()) / 1e9
    rows.append(["waking up, and the timing of these parts", "", "", f"{rest / timed.wall_s:.3%}"])
    rows.append([f"all, at {steps / share.wall_s:.0f} steps a second", "", "", f"{share.of_core:.3%}"])
    return share.of_core, rows


def count(folder: Path) -> Calls:
    """The helper's calls for the events of so many steps, made in this thread."""
    calls = Calls()
    with patch.object(Helper, "start", lambda helper: None):
        session = begin(folder)
        job = Job(0, workers=0)
        batches = job.batches()
        job.steps_s(batches, 10 * FIRST_STEPS)
        session.helper._drain()
        session.writer.flush()
        job.steps_s(batches, COUNTED_STEPS)
        with calls.counting():
            session.helper._drain()
            session.writer.flush()
        session.finish("ok", 0)
    return calls


def on_the_host(steps: int, folder: Path) -> int:
    """Prints the tables; the exit code."""
    print(describe())
    limits = Limits()
    for kind in KINDS:
        progress(kind.name)
        share, rows = measure(kind, steps, folder)
        print(f"\n{kind.name}: {share:.2%} of a core")
        print_table(["part", "calls a second", "µs a call", "of a core"], rows)
        if not kind.outside:
            limits.at_most(f"{kind.name}: share of a core", share, LIMIT)
    calls = count(folder)
    python, in_c = (sum(found.values()) / COUNTED_STEPS for found in (calls.python, calls.in_c))
    print(f"\nA step takes {python:.1f} calls in Python and {in_c:.1f} in C.")
    found = calls.python.most_common(20)
    print_table(["function", "calls a step"], [[name, f"{each / COUNTED_STEPS:.2f}"] for name, each in found])
    return limits.exit_code()


class Launches(nn.Module):
    """Launches kernels that the device has done before the next one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(LAUNCHES):
            for _ in range(PYTHON_BETWEEN):
                pass
            torch.cuda._sleep(KERNEL_NS)
        result: torch.Tensor = self.layer(x)
        return result


class LaunchBound:
    """A training of steps of about 2 ms, most of which the host takes to launch them."""

    def __init__(self) -> None:
        self.model = Launches().to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.batch = torch.ones(2, 4)

    def steps_us(self, seconds: float) -> list[float]:
        """What each step took, without the time in which its thread was ready to run and had no processor."""
        end, steps = time.perf_counter() + seconds, []
        with Path("/proc/thread-self/schedstat").open("rb", buffering=0) as queue:
            last, last_queued = time.perf_counter_ns(), _queued_ns(queue)
            while time.perf_counter() < end:
                self.optimizer.zero_grad()
                self.model(self.batch.to("cuda")).sum().backward()
                self.optimizer.step()
                now, queued = time.perf_counter_ns(), _queued_ns(queue)
                steps.append((now - last - (queued - last_queued)) / 1000)
                last, last_queued = now, queued
        return steps


def _queued_ns(schedstat: Any) -> int:
    """How long a thread has waited for a processor so far."""
    return int(os.pread(schedstat.fileno(), 100, 0).split()[1])


def stalls_us(steps: list[float]) -> list[float]:
    """How much longer than usual each step took."""
    usual = statistics.median(steps)
    return [max(0.0, step - usual) for step in steps]


class Bursts:
    """How long the helper thread computes between two waits: as long, at most, the training waits for the lock."""

    def __init__(self) -> None:
        self.us: list[float] = []
        self._since: dict[int, int] = {}
        for name in ("sleep", "wait"):
            setattr(real_time.time, name, staticmethod(self._noted(getattr(real_time.time, name))))

    def _noted(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            if threading.current_thread().name != HELPER_THREAD:
                return wait(*args)
            ident = threading.get_ident()
            if ident in self._since:
                self.us.append((time.thread_time_ns() - self._since[ident]) / 1000)
            result = wait(*args)
            self._since[ident] = time.thread_time_ns()
            return result

        return noted


def on_a_device(seconds: float, folder: Path) -> int:
    """Prints how long the launches of a training were held up, without hooks and with it; the exit code."""
    from scripts.lab import simulated_cuda

    print(describe())
    simulated_cuda.install(ask_ns=ASK_NS, devices=1)
    job = LaunchBound()
    job.steps_us(1)
    bursts = Bursts()
    session = begin(folder)
    job = LaunchBound()
    job.steps_us(FIRST_S)
    found: dict[bool, list[float]] = {False: [], True: []}
    held: list[float] = []
    cpu_s = wall_s = 0.0
    for _ in range(round(seconds)):  # in turn, as other processes of the machine come and go
        session.pause()
        job.steps_us(0.5)  # the helper has some steps to go yet
        found[False] += job.steps_us(1)
        session.resume()
        job.steps_us(SETTLING_S)
        bursts.us.clear()
        share = Share(lambda: found[True].extend(job.steps_us(1)))
        held += bursts.us
        cpu_s, wall_s = cpu_s + share.cpu_s, wall_s + share.wall_s
    session.finish("ok", 0)
    stalls = [stalls_us(found[False]), stalls_us(found[True])]
    off_ms, on_ms = (statistics.median(found[hooks]) / 1000 for hooks in (False, True))
    print(f"\nSteps of {off_ms:.2f} ms without hooks, {on_ms:.2f} ms with them.")
    print(f"The helper thread takes {cpu_s / wall_s:.2%} of a core.")
    rows = []
    for least, most in itertools.pairwise((*BUCKETS_US, math.inf)):
        counts = [1000 * sum(least <= x < most for x in steps) / len(steps) for steps in stalls]
        name = f"{least} to {most} µs" if most < math.inf else f"{least} µs and more"
        burst = sum(least <= x < most for x in held) / wall_s
        rows.append([name, *(f"{count:.1f}" for count in counts), f"{burst:.1f}"])
    print_table(
        ["longer than usual by", "of 1,000 steps without hooks", "with hooks", "helper's bursts a second"], rows
    )
    print_table(
        ["µs at most, of", *(f"{percent} %" for percent in PERCENTS)],
        [
            [name, *(f"{_percentile(values, percent):.0f}" for percent in PERCENTS)]
            for name, values in (
                ("the stalls of steps without hooks", stalls[0]),
                ("the stalls of steps with hooks", stalls[1]),
                ("the helper's bursts", held),
            )
        ],
    )
    limits = Limits()
    limits.at_most("99th percentile of the helper's bursts in µs", _percentile(held, 99), STALL_LIMIT_US)
    return limits.exit_code()


def _percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def main() -> int:
    """Measures, prints, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="store_true", help="a launch-bound training on the simulated device")
    parser.add_argument("--seconds", type=float, default=10, help="that are timed on a device (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="that are timed (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.device:
            return on_a_device(args.seconds, Path(folder))
        return on_the_host(args.steps, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
