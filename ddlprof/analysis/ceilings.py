"""The shortest possible step if one thing were perfect: bounds from the timeline, not predictions.

Without a class, no rank can end before the rest of its own work is done, and no step before its last rank. So a step
takes at least the longest of what is left on any rank without the class and without waits for later ranks. The most
that can be gained is the mean step minus this. Gains of two classes must not be added: one rank's saved time may become
another wait.
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
    "straggler": "ranks that are all as fast as the first one in each step",
    "bubble": "a pipeline whose schedule keeps all stages busy",
    "comm": "no communication at all",
    "other": "nothing but computing, data and communication in the loop",
}
"""What would have to happen for each class to vanish, in the order shown."""


@dataclass(frozen=True)
class Ceiling:
    """The step without one class."""

    name: str
    step_s: float
    """The lower bound of the mean step."""
    gain_s: float
    """The upper bound of the gain."""


def ceilings(ranks: Sequence[RankTimes], step_s: float) -> list[Ceiling]:
    """The bounds for each measured class over the steady steps. `step_s`: the mean step.

    Empty without steady steps, or if several ranks' communication was not measured: their waits for each other would
    count as work.
    """
    steady = [_Steady.of(rank) for rank in ranks]
    steady = [rank for rank in steady if len(rank.step)]
    if not steady or (len(steady) > 1 and any(rank.wait is None for rank in steady)):
        return []
    mean = float(np.concatenate([rank.times["step"] for rank in steady]).mean())
    steps, index = np.unique(np.concatenate([rank.step for rank in steady]), return_inverse=True)
    found = []
    for name in CEILINGS:
        if all(name in rank.times for rank in steady) and (name != "bubble" or _has_bubble(steady)):
            gain = max(0.0, mean - _least(steady, name, index, len(steps))) / mean if mean else 0.0
            found.append(Ceiling(name, step_s * (1 - gain), step_s * gain))
    return found


@dataclass(frozen=True)
class _Steady:
    """The steady steps of one rank: nanoseconds of what was measured in all of them."""

    step: NDArray[np.int64]
    times: dict[str, NDArray[np.int64]]
    wait: NDArray[np.int64] | None
    """The part of each step that may be a wait for another rank; None: not measured."""

    @staticmethod
    def of(rank: RankTimes) -> _Steady:
        times = {name: rank.times[name][rank.steady] for name in ("step", *CEILINGS, *COMM_PARTS)}
        known = {name: values for name, values in times.items() if not (values == MISSING).any()}
        wait = known.get("comm")
        if "straggler" in known and "bubble" in known:
            wait = known["straggler"] + known["bubble"]
        return _Steady(rank.step[rank.steady], known, wait)


def _has_bubble(ranks: Sequence[_Steady]) -> bool:
    """Whether the job has a pipeline at all."""
    return any(rank.times["bubble"].any() for rank in ranks)


def _least(ranks: Sequence[_Steady], name: str, index: NDArray[np.intp], steps: int) -> float:
    """The mean lower bound of steps without the class, in ns.

    `index`: for each step of the ranks, one rank after the other, which of the job's `steps` it is.
    """
    alone = all(rank.wait is None or not rank.times["comm"].any() for rank in ranks)
    if alone or name == "bubble":  # ranks do not wait for each other, or would not
        return float(np.concatenate([rank.times["step"] - rank.times[name] for rank in ranks]).mean())
    longest = np.zeros(steps, dtype=np.int64)
    if name == "straggler":  # who waits longest is the first one: of two ranks, the mean wait is half of it
        np.maximum.at(longest, index, np.concatenate([rank.times[name] for rank in ranks]))
        step = np.concatenate([rank.times["step"] for rank in ranks])
        return float(np.maximum(step - longest[index], 0).mean())
    left = []
    for rank in ranks:
        wait = rank.wait if rank.wait is not None and name != "comm" else 0  # part of communication
        gone = rank.times[name] + wait
        left.append(rank.times["step"] - gone)
    np.maximum.at(longest, index, np.concatenate(left))
    return float(longest.mean())
