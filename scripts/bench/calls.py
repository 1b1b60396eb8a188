"""How many calls of ours a plain step makes in the training thread: what the hooks cost, on any machine the same.

    python -m scripts.bench.calls

A DataLoader without workers, `zero_grad`, a forward, a backward and an update. Python functions of ddlprof that are
called, and functions in C that they call. `tests/integration/hooks/test_calls.py` holds their number.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from scripts.bench.jobs import print_table

OURS = f"{os.sep}ddlprof{os.sep}collect{os.sep}"
STEPS = 200
STEP_MS = 2


class Calls:
    """Counts the calls of this thread while it is `counting`."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        """By file and function."""
        self.in_c: Counter[str] = Counter()
        """By file, function and the name of what it calls."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts inside the block."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: Any, event: str, called: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_call") or OURS not in code.co_filename:
            return
        name = f"{code.co_filename.rpartition(OURS)[2]} {code.co_name}"
        if event == "call":
            self.python[name] += 1
        else:
            self.in_c[f"{name} {getattr(called, '__name__', called)}"] += 1


def main() -> None:
    """Prints the calls of a step, the most frequent first."""
    from ddlprof.collect.session import start
    from ddlprof.model.options import Options
    from scripts.bench.overhead import FIRST_STEPS, Job

    torch.set_num_threads(1)
    calls = Calls()
    with tempfile.TemporaryDirectory() as folder:
        session = start(Options(out=folder, quiet=True, card=False), "bench", ["bench"])
        job = Job(STEP_MS, workers=0)
        batches = job.batches()
        job.steps_s(batches, 10 * FIRST_STEPS)
        with calls.counting():
            job.steps_s(batches, STEPS)
        session.finish("ok", 0)
    for title, found in (("Python", calls.python), ("C", calls.in_c)):
        print(f"\n{title}: {sum(found.values()) / STEPS:.1f} calls a step\n")
        rows = [[name, f"{count / STEPS:.2f}"] for name, count in found.most_common()]
        print_table(["function", "calls a step"], rows)


if __name__ == "__main__":
    main()
