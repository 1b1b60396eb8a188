"""A job that is interrupted at given moments: what the formulas of `ddlprof.recommender.failures` are checked by."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def poisson(per_s: float, seed: int) -> Iterator[float]:
    """The moments of interruptions (s) at a constant rate, without an end."""
    draw, now = random.Random(seed), 0.0
    while True:
        now += draw.expovariate(per_s)
        yield now


def simulated_s(
    work_s: float, every_s: float, checkpoint_s: float, restart_s: float, interruptions: Iterable[float]
) -> float:
    """The seconds until the work is done, with interruptions at these moments since the job began.

    A checkpoint follows every `every_s` seconds of work, but not the last. An interruption throws away what was done
    since the last checkpoint that was whole; then the job starts again, which can be interrupted, too.
    """
    now = saved_s = 0.0
    moments = iter(interruptions)
    interrupted_at = next(moments, float("inf"))
    starting_s = 0.0
    while True:
        stretch_s = min(every_s, work_s - saved_s)
        is_last = saved_s + stretch_s >= work_s - 1e-9
        end = now + starting_s + stretch_s + (0.0 if is_last else checkpoint_s)
        if interrupted_at < end:
            now, starting_s = interrupted_at, restart_s
            interrupted_at = next(moments, float("inf"))
            continue
        now, starting_s, saved_s = end, 0.0, saved_s + stretch_s
        if is_last:
            return now
