"""Runs a training script under torch.profiler, untouched, and writes what the profiler's own events say of each step.

    python under_torch_profiler.py EVENTS.json FIRST STEPS SCRIPT [ARGS]...

A step ends where the profiler's range of the optimizer's step ends. Steps FIRST to FIRST + STEPS - 1 are profiled.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule

WARMUP_STEPS = 3
LOADER, UPDATE, COLLECTIVE = "enumerate(DataLoader)#", "Optimizer.step#", "gloo:"
MARKS = "ProfilerStep#"


def ranges(profiler: profile) -> list[tuple[str, float, float]]:
    """Name, begin and end (seconds) of every event, in order; the profiler's own marks are left out."""
    found = [(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in profiler.events() or []]
    return sorted((r for r in found if not r[0].startswith(MARKS)), key=lambda r: r[1])


def steps(events: list[tuple[str, float, float]]) -> list[dict[str, float]]:
    """One row for each step between two updates: data wait; first operation after the batch to end of update."""
    ends = [end for name, _, end in events if name.startswith(UPDATE)]
    rows = []
    for begin, end in pairwise(ends):
        inside = [r for r in events if begin <= r[1] and r[2] <= end]
        loads = [r for r in inside if r[0].startswith(LOADER)]
        batch_there = max((r[2] for r in loads), default=begin)
        first = min(r[1] for r in inside if r[1] >= batch_there)
        rows.append({
            "step_s": end - begin,
            "data_s": sum(r[2] - r[1] for r in loads),
            "compute_s": end - first,
            "collective_s": sum(r[2] - r[1] for r in inside if r[0].startswith(COLLECTIVE)),
        })  # fmt: skip
    return rows


def main() -> None:
    """Profiles and writes."""
    output, first, count, script = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    sys.argv = sys.argv[4:]
    captured: list[dict[str, float]] = []

    def keep(profiler: profile) -> None:
        captured.extend(steps(ranges(profiler))[:count])

    # Two more than asked for: the update of one is where the first begins; in the last the profiler is stopped, which
    # takes long.
    plan = schedule(wait=first - 1 - WARMUP_STEPS, warmup=WARMUP_STEPS, active=count + 2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=keep) as profiler:

        def after_step(*_: Any) -> None:
            profiler.step()

        hook = register_optimizer_step_post_hook(after_step)
        runpy.run_path(script, run_name="__main__")
        hook.remove()
    if os.environ.get("RANK", "0") == "0":
        Path(output).write_text(json.dumps(captured), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
