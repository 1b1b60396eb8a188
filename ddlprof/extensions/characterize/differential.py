"""Stalls as differences between whole runs, by the formulas of DS-Analyzer and Stash, corrected.

Each is the mean step of one experiment minus that of another. Differences may be negative, as the runs are different
runs; they are not clamped. Beside each stands the same stall by direct attribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddlprof.analysis.summary import Summary
from ddlprof.extensions.characterize.experiment import ALL_REPLAYED, COLD, NETWORK, ONE_REPLAYED, WARM
from ddlprof.model.classes import TIMES


@dataclass(frozen=True)
class ExperimentTimes:
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
    """`whole - part`, a difference of mean steps. None: a run is missing, or the stall was not measured.

    Shares are of the reference's step.
    """

    name: str
    whole: str
    part: str
    stall_s: float | None
    stall_low_s: float | None
    """The smallest and the largest difference between any two repeats; None without repeats."""
    stall_high_s: float | None
    stall_share: float | None
    direct_s: float | None
    direct_share: float | None
    direct_is: str
    """Which mean the direct figure is, and of which run."""
    disagreement_s: float | None
    """The difference minus the direct figure."""
    disagreement_share: float | None


PAIRS = {
    "interconnect": (ALL_REPLAYED, ONE_REPLAYED),
    "prep": (WARM, ALL_REPLAYED),
    "fetch": (COLD, WARM),
    "data": (COLD, ALL_REPLAYED),  # both together
    # The user's run has read its input, as the warm one has.
    "network": (NETWORK, WARM),
}

_DIRECT_CLASS = {
    "interconnect": (ALL_REPLAYED, "comm"),
    "prep": (WARM, "data"),
    "data": (COLD, "data"),
    "network": (NETWORK, "network"),
}


def measure(summaries: Sequence[Summary]) -> ExperimentTimes:
    """The times of an experiment from its repeats, each of which has steady steps."""
    values = {name: [summary.mean_ns(name) for summary in summaries] for name in TIMES}
    known = {name: [each / 1e9 for each in column if each is not None] for name, column in values.items()}
    return ExperimentTimes(known["step"], {name: median(column) if column else None for name, column in known.items()})


def stalls(measured: Mapping[str, ExperimentTimes]) -> list[Stall]:
    """Every stall that the given experiments allow to compute."""
    reference_s = reference_step_s(measured)

    def share(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / reference_s

    found = []
    for name, (whole, part) in PAIRS.items():
        difference = low = high = None
        if whole in measured and part in measured:
            longer, shorter = measured[whole], measured[part]
            difference = longer.step_s - shorter.step_s
            if len(longer.steps_s) > 1 and len(shorter.steps_s) > 1:
                low = min(longer.steps_s) - max(shorter.steps_s)
                high = max(longer.steps_s) - min(shorter.steps_s)
        direct = _direct(name, measured)
        beyond = None if difference is None or direct is None else difference - direct
        found.append(
            Stall(
                name, whole, part, difference, low, high, share(difference), direct, share(direct), _direct_is(name),
                beyond, share(beyond),
            )
        )  # fmt: skip
    return found


def reference_step_s(measured: Mapping[str, ExperimentTimes]) -> float:
    """The step to which shares refer: that of the run most like the user's training."""
    return next(measured[name].step_s for name in (COLD, WARM, ALL_REPLAYED, ONE_REPLAYED) if name in measured)


def _direct(name: str, measured: Mapping[str, ExperimentTimes]) -> float | None:
    """The same stall by direct attribution.

    Time for which a loader is blocked with a warm cache, too (remote storage, a lock, a sleep) is in no difference of
    fetching, so it is counted as preparation here.
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


def _time(measured: Mapping[str, ExperimentTimes], experiment: str, name: str) -> float | None:
    return measured[experiment].times_s[name] if experiment in measured else None
