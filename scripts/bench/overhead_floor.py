"""The least that looking at a training from Python takes: hooks that only call what they replace, on and off in turn.

    python -m scripts.bench.overhead_floor

The job, the blocks and the statistics are those of `scripts.bench.overhead`. The hooks are at the six places where
ddlprof has to be in each step (a batch, the forward, the backward, an update's begin and end, `zero_grad`); each
appends a time stamp before and after, and does nothing else. There is no helper thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from scripts.bench.jobs import print_table, progress
from scripts.bench.machine import describe
from scripts.bench.overhead import BLOCK_STEPS, FIRST_STEPS, Job, Kind, block_s, blocks, ratio_of

KINDS = (Kind(2, 0, 6000), Kind(5, 0, 4000), Kind(20, 0, 4000))


class Floor:
    """Hooks that append time stamps. `resume` installs them and `pause` takes them back, as a session does."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stamps: list[int] = []
        self._undo: list[Callable[[], Any]] = []

    def resume(self) -> None:
        """Installs the hooks."""
        model, optimizer, mark = self.job.model, self.job.optimizer, self._mark
        call: Any = model._call_impl
        self._replace(dataloader._BaseDataLoaderIter, "__next__", self._around(dataloader._BaseDataLoaderIter.__next__))
        self._replace(torch.autograd, "backward", self._around(torch.autograd.backward))
        self._replace(type(optimizer), "zero_grad", self._around(type(optimizer).zero_grad))
        model.__dict__["_compiled_call_impl"] = self._around(call)
        self._undo.append(lambda: model.__dict__.pop("_compiled_call_impl"))
        self._undo.append(register_optimizer_step_pre_hook(lambda *_: mark()).remove)
        self._undo.append(register_optimizer_step_post_hook(lambda *_: mark()).remove)

    def pause(self) -> None:
        """Takes the hooks back."""
        while self._undo:
            self._undo.pop()()
        self.stamps.clear()

    def _mark(self) -> None:
        self.stamps.append(time.perf_counter_ns())

    def _around(self, original: Any) -> Any:
        append, now = self.stamps.append, time.perf_counter_ns

        def hook(*args: Any, **kwargs: Any) -> Any:
            append(now())
            try:
                return original(*args, **kwargs)
            finally:
                append(now())

        return hook

    def _replace(self, owner: Any, name: str, hook: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, hook)
        self._undo.append(lambda: setattr(owner, name, original))


def measure(kind: Kind, quick: bool) -> list[str]:
    """One line of the table."""
    job = Job(kind.step_ms, kind.workers)
    batches, floor = job.batches(), Floor(job)
    job.steps_s(batches, FIRST_STEPS)

    steps = kind.steps // 10 if quick else kind.steps
    on, off = blocks(lambda hooks: block_s(floor, hooks, job, batches), pairs=steps // (2 * BLOCK_STEPS))
    ratio, error = ratio_of(on, off)
    step_s = statistics.median(off)
    return [
        f"{kind.step_ms} ms",
        f"{1e3 * step_s:.2f}",
        f"{ratio:.4f} ± {error:.4f}",
        f"{1e6 * (ratio - 1) * step_s:.0f}",
    ]


def main() -> int:
    """Measures every kind of step and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(describe())
    rows = []
    for kind in KINDS:
        progress(f"steps of {kind.step_ms} ms")
        rows.append(measure(kind, args.quick))
    print_table(["step", "step ms, hooks off", "on / off", "µs a step"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
