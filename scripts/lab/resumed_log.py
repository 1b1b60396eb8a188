"""Reads what `scripts/jobs/resuming.py` logged: its own truth on the steps that it did, and those that it did again."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

_FIRST_STEPS = 3
"""What the first steps of an attempt take longer than the mean of the others is start-up."""


def read_log(path: Path) -> tuple[list[float], list[float]]:
    """The seconds of steps done for the first time, and of those done again."""
    attempts: list[list[tuple[int, float]]] = []
    for line in path.read_text().splitlines():
        words = line.split()
        if not attempts or int(words[0]) <= attempts[-1][-1][0]:
            attempts.append([])
        attempts[-1].append((int(words[0]), float(words[1])))
    new: list[float] = []
    again: list[float] = []
    reached = 0
    for attempt in attempts:
        usual_s = fmean(seconds for _, seconds in attempt[_FIRST_STEPS:] or attempt)
        for number, (step, seconds) in enumerate(attempt):
            counted_s = min(seconds, usual_s) if number < _FIRST_STEPS else seconds
            (new if step > reached else again).append(counted_s)
        reached = max(reached, attempt[-1][0])
    return new, again
