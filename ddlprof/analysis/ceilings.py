"""What a step would take at best if one thing were perfect: bounds from the timeline, not predictions.

Without a class, no rank can be done earlier than after the rest of its own work, and no step earlier than its last
rank. So a step takes at least the longest of what is left on any rank when the class and its waits for later ranks are
taken away. What the mean step exceeds this by is the most that can be gained. The gains of two classes are not to be
added up: what one of them saves may be time that the other would then wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.summary import RankTimes
from ddlprof.model.classes import COMM_PARTS
from ddlprof.model.records import MISSING

CEILINGS = {
    "data": "a perfect loader: every batch is there when it is asked for",
    "h2d": "copies to the device that nothing waits for",
    "network": "a network between machines as fast as the links inside one",
    "straggler": "ranks that are all equally fast",
    "comm": "no communication at all",
    "other": "nothing but computing, data and communication in the loop",
}
"""What it would take for each class to be gone, in the order shown."""


@dataclass(frozen=True)
class Ceiling:
    """The step without one class."""

    name: str
    step_s: float
    """The least that the mean step could be."""
    gain_s: float
    """The most that could be gained."""


def ceilings(ranks: Sequence[RankTimes], step_s: float) -> list[Ceiling]:
    """The ceilings of the steady steps, of the classes that were measured, where `step_s` is the mean step.

    Empty where there is no steady step, or where communication of several ranks was not measured: their waits for
    each other would be taken for work.
    """
    steady = [_Steady.of(rank) for rank in ranks]
    steady = [rank for rank in steady if len(rank.step)]
    if not steady or (len(steady) > 1 and any(rank.wait is None for rank in steady)):
        return []
    mean = float(np.concatenate([rank.times["step"] for rank in steady]).mean())
    steps, index = np.unique(np.concatenate([rank.step for rank in steady]), return_inverse=True)
    found = []
    for name in CEILINGS:
        if all(name in rank.times for rank in steady):
            gain = max(0.0, mean - _least(steady, name, index, len(steps))) / mean if mean else 0.0
            found.append(Ceiling(name, step_s * (1 - gain), step_s * gain))
    return found


@dataclass(frozen=True)
class _Steady:
    """The steady steps of one rank: nanoseconds of what was measured in all of them."""

    step: NDArray[np.int64]
    times: dict[str, NDArray[np.int64]]
    wait: NDArray[np.int64] | None
    """The part of each step that may be waiting for another rank; None where it was not measured."""

    @staticmethod
    def of(rank: RankTimes) -> _Steady:
        times = {name: rank.times[name][rank.steady] for name in ("step", *CEILINGS, *COMM_PARTS)}
        known = {name: values for name, values in times.items() if not (values == MISSING).any()}
        return _Steady(rank.step[rank.steady], known, known.get("straggler", known.get("comm")))


def _least(ranks: Sequence[_Steady], name: str, index: NDArray[np.intp], steps: int) -> float:
    """The mean of what steps would take without the class, in nanoseconds.

    `index`: which of the `steps` of the job each step of the ranks is, one rank after the other.
    """
    alone = all(rank.wait is None or not rank.times["comm"].any() for rank in ranks)
    if alone or name == "straggler":  # ranks that do not wait for each other, or would not
        return float(np.concatenate([rank.times["step"] - rank.times[name] for rank in ranks]).mean())
    longest = np.zeros(steps, dtype=np.int64)
    left = []
    for rank in ranks:
        wait = rank.wait if rank.wait is not None and name != "comm" else 0  # of communication, it is a part
        gone = rank.times[name] + wait
        left.append(rank.times["step"] - gone)
    np.maximum.at(longest, index, np.concatenate(left))
    return float(longest.mean())
