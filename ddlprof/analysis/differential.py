"""Stalls as differences between whole runs, by the corrected formulas of DS-Analyzer and Stash.

Each is the mean step of one experiment less that of another. Nothing is clamped: the runs are different runs, so a
difference can be negative. Beside each stands what the direct attribution says of the same stall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddlprof.analysis.summary import Summary
from ddlprof.model.classes import TIMES
from ddlprof.model.options import ALL_REPLAYED, COLD, NETWORK, ONE_REPLAYED, WARM


@dataclass(frozen=True)
class Measured:
    """The times of one experiment: medians over its repeats, in seconds."""

    steps_s: list[float]
    """The mean step of each repeat."""
    times_s: dict[str, float | None]
    """The mean step and the classes; None: not measured."""

    @property
    def step_s(self) -> float:
        return median(self.steps_s)


@dataclass(frozen=True)
class Stall:
    """`whole - part` of the mean steps. None: one of the runs is missing, or not measured."""

    name: str
    whole: str
    part: str
    stall_s: float | None
    low_s: float | None
    """The smallest and the largest difference between any two repeats; None without repeats."""
    high_s: float | None
    direct_s: float | None
    direct_is: str
    """What the direct figure is the mean of, and in which run."""

    @property
    def disagreement_s(self) -> float | None:
        """How far the difference is from the direct figure."""
        return None if self.stall_s is None or self.direct_s is None else self.stall_s - self.direct_s


PAIRS = {
    "interconnect": (ALL_REPLAYED, ONE_REPLAYED),
    "prep": (WARM, ALL_REPLAYED),
    "fetch": (COLD, WARM),
    "data": (COLD, ALL_REPLAYED),  # the two together
    # The run that the user brings along has read its input, as the warm one has.
    "network": (NETWORK, WARM),
}

_DIRECT_CLASS = {
    "interconnect": (ALL_REPLAYED, "comm"),
    "prep": (WARM, "data"),
    "data": (COLD, "data"),
    "network": (NETWORK, "network"),
}


def measure(summaries: Sequence[Summary]) -> Measured:
    """Measures the repeats of an experiment, each of which has a steady step."""
    values = {name: [summary.mean_ns(name) for summary in summaries] for name in TIMES}
    known = {name: [each / 1e9 for each in column if each is not None] for name, column in values.items()}
    return Measured(known["step"], {name: median(column) if column else None for name, column in known.items()})


def stalls(measured: Mapping[str, Measured]) -> list[Stall]:
    """Every stall that the experiments at hand can give."""
    found = []
    for name, (whole, part) in PAIRS.items():
        difference = low = high = None
        if whole in measured and part in measured:
            longer, shorter = measured[whole], measured[part]
            difference = longer.step_s - shorter.step_s
            if len(longer.steps_s) > 1 and len(shorter.steps_s) > 1:
                low = min(longer.steps_s) - max(shorter.steps_s)
                high = max(longer.steps_s) - min(shorter.steps_s)
        found.append(Stall(name, whole, part, difference, low, high, _direct(name, measured), _direct_is(name)))
    return found


def reference_step_s(measured: Mapping[str, Measured]) -> float:
    """The step that shares refer to: that of the run nearest to the user's training."""
    return next(measured[name].step_s for name in (COLD, WARM, ALL_REPLAYED, ONE_REPLAYED) if name in measured)


def _direct(name: str, measured: Mapping[str, Measured]) -> float | None:
    """The same stall as direct attribution shows it.

    What a loader is blocked for with a warm cache too (remote storage, a lock, a sleep) is no fetch stall by
    difference, so it is left out of the direct figure and counted under prep.
    """
    if name == "fetch":
        cold, warm = _time(measured, COLD, "data_fetch"), _time(measured, WARM, "data_fetch")
        return None if cold is None or warm is None else cold - warm
    return _time(measured, *_DIRECT_CLASS[name])


def _direct_is(name: str) -> str:
    if name == "fetch":
        return f"data_fetch of {COLD}, less that of {WARM}"
    experiment, kind = _DIRECT_CLASS[name]
    return f"{kind} of {experiment}"


def _time(measured: Mapping[str, Measured], experiment: str, name: str) -> float | None:
    return measured[experiment].times_s[name] if experiment in measured else None
