"""What the helper thread takes: its share of a core at steps of 20 ms, where that goes, and how many calls it makes.

    python -m scripts.bench.helper

The job is that of `scripts.bench.overhead`, without and with two workers of its loader, and once with its wait between
two steps: the stack is looked at often then. The share is the thread's own
processor time, by the system's clock of the thread, over the wall time. Where it goes is timed inside the thread by
its own processor time, around its parts; what is left is waking up. The calls are those of Python functions of
ddlprof, and of C functions that they call, for the events of a plain step: the same on any machine.
`--device`: a launch-bound training on the simulated device, whose calls hold the interpreter's lock as long as CUDA's
do; the histogram says how much longer than usual the training thread was between two of its launches.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
PARTS = (
    ("stack samples", "_sample_stack"),
    ("events to rows", "_drain"),
    ("peak memory", "_read_peak_memory"),
    ("once a second", "_slow_records"),
    ("tending", "tend"),
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
    outside_s = job.wait.seconds if kind.outside else 0.0
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
    starting, Helper.start = Helper.start, lambda helper: None  # type: ignore[method-assign]
    try:
        session = begin(folder)
        job = Job(0, workers=0)
        batches = job.batches()
        job.steps_s(batches, 10 * FIRST_STEPS)
        session.helper._drain()
        session.writer.flush()
        job.steps_s(batches, COUNTED_STEPS)
        calls = Calls()
        with calls.counting():
            session.helper._drain()
            session.writer.flush()
        session.finish("ok", 0)
    finally:
        Helper.start = starting  # type: ignore[method-assign]
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


def main() -> int:
    """Measures, prints, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="that are timed (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return on_the_host(args.steps, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
