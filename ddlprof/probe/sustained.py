"""Repeats an operation for some time and tells how often a second it was done, at first and in the long run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_ROUND_S = 0.02
"""The device is waited for once in so long: rarely enough not to count, often enough to see clocks fall."""
_SETTLED = 1 / 3
"""The share of the time after which a device is taken to run at the clock that it can keep."""
_MOST_CALLS = 100_000


class Rate(NamedTuple):
    """Calls a second."""

    per_s: float
    """In the long run: without the first third of the time."""
    first_per_s: float
    """In the beginning, before clocks fall."""
    calls: int


def sustained(run: Callable[[], object], finish: Callable[[], object], seconds: float) -> Rate:
    """Calls `run` for some time; `finish` waits until the device has done all of it. At least three calls are made."""
    run()  # allocates, chooses kernels, compiles
    finish()
    calls = _calls_of_a_round(run, finish)
    rounds: list[tuple[float, float]] = []  # seconds since the beginning, seconds of the round
    begin = last = time.perf_counter()
    while len(rounds) < 2 or last - begin < seconds:
        for _ in range(calls):
            run()
        finish()
        now = time.perf_counter()
        rounds.append((now - begin, now - last))
        last = now
    settled_s = [length for end, length in rounds if end - length >= _SETTLED * (last - begin)] or [rounds[-1][1]]
    return Rate(calls * len(settled_s) / sum(settled_s), calls / rounds[0][1], calls * len(rounds))


def _calls_of_a_round(run: Callable[[], object], finish: Callable[[], object]) -> int:
    """How many calls fill a round."""
    calls = 1
    while True:
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        finish()
        took_s = time.perf_counter() - begin
        if took_s > _ROUND_S / 2 or calls >= _MOST_CALLS:
            return max(1, round(calls * _ROUND_S / max(took_s, 1e-9))) if took_s < _ROUND_S else calls
        calls *= 4
