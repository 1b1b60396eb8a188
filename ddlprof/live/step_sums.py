"""Sums over all steps of a rank so far, while its files grow."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.classes import CLASSES, OPTIONAL
from ddlprof.model.hang import standstill_s
from ddlprof.model.records import MISSING, Flag
from ddlprof.store import RankData

_TIMES = ("step", *CLASSES)


@dataclass
class ClassSums:
    """Sums over steps in which the same classes were measured."""

    steps: int = 0
    times_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIMES, 0))


@dataclass
class StepSums:
    """Sums over all steps of a rank so far, including the unusual ones."""

    steps: int = 0
    last_step: int | None = None
    samples: int | None = None
    epochs: int = 0
    """The number of steps that had the first batch of an epoch."""
    epoch_step: int | None = None
    """The last step that had the first batch of an epoch."""
    epoch_steps: int | None = None
    """The length of the last whole epoch, in steps."""
    by_pattern: dict[frozenset[str], ClassSums] = field(default_factory=dict)
    """The sums by the optional classes that were measured: the time of one that was not is in another class."""
    unusual: dict[str, int] = field(default_factory=dict)
    """The number of steps by the name of their flag."""
    usual_steps: int = 0
    usual_ns: int = 0
    """Steps without a flag in which nothing hung, and their time."""

    def add(self, rank: RankData) -> None:
        """Adds the steps decoded from a further piece of the rank's file."""
        steps = rank.steps
        if len(steps):
            self.steps += len(steps)
            self.last_step = int(steps["step"][-1])
            flags = steps["flags"]
            took = steps["step_ns"][(flags == 0) & (steps["step_ns"] <= _hang_ns(steps["step_ns"]))]
            self._add_usual(len(took), int(took.sum()))
            for value, count in zip(*np.unique(flags, return_counts=True), strict=True):
                self._add_unusual(int(value), int(count))
            epochs = np.flatnonzero(flags & int(Flag.EPOCH_START))
            for step in steps["step"][epochs].tolist():
                self.epochs += 1
                self.epoch_steps = None if self.epoch_step is None else step - self.epoch_step
                self.epoch_step = step
            known = steps["samples"][steps["samples"] != MISSING]
            self._add_samples(int(known.sum()) if len(known) else None)
            self._add_times(rank)
        for sums in rank.aggregates:
            self.steps += sums.steps
            if not sums.flags:
                self._add_usual(sums.steps, sums.step_ns)
            self._add_unusual(sums.flags, sums.steps)
            self._add_samples(sums.samples)
            pattern = frozenset(name for name in OPTIONAL if getattr(sums, f"{name}_ns") is not None)
            times = {name: getattr(sums, f"{name}_ns") or 0 for name in _TIMES}
            self._add_sums(pattern, sums.steps, times)

    def _add_unusual(self, flags: int, steps: int) -> None:
        for flag in Flag:
            if flags & flag:
                name = (flag.name or "").lower()
                self.unusual[name] = self.unusual.get(name, 0) + steps

    def _add_usual(self, steps: int, step_ns: int) -> None:
        self.usual_steps += steps
        self.usual_ns += step_ns

    @property
    def usual_s(self) -> float | None:
        """The mean of the usual steps, in seconds."""
        return self.usual_ns / self.usual_steps / 1e9 if self.usual_steps else None

    def _add_times(self, rank: RankData) -> None:
        steps = rank.steps
        columns = {name: steps[f"{name}_ns"] for name in _TIMES}
        patterns = sum((columns[name] != MISSING).astype(np.int64) << bit for bit, name in enumerate(OPTIONAL))
        for number in np.unique(patterns).tolist():
            rows = patterns == number
            pattern = frozenset(name for bit, name in enumerate(OPTIONAL) if number >> bit & 1)
            times = {name: int(np.maximum(column[rows], 0).sum()) for name, column in columns.items()}
            self._add_sums(pattern, int(np.count_nonzero(rows)), times)

    def _add_sums(self, pattern: frozenset[str], steps: int, times_ns: dict[str, int]) -> None:
        sums = self.by_pattern.setdefault(pattern, ClassSums())
        sums.steps += steps
        for name, value in times_ns.items():
            sums.times_ns[name] += value

    def _add_samples(self, samples: int | None) -> None:
        if samples is not None:
            self.samples = (self.samples or 0) + samples

    def measured_ns(self) -> dict[str, int]:
        """The time of each class in all steps in which it was measured."""
        found: dict[str, int] = {}
        for pattern, sums in self.by_pattern.items():
            for name, value in sums.times_ns.items():
                if name not in OPTIONAL or name in pattern:
                    found[name] = found.get(name, 0) + value
        return found

    def means_ns(self) -> dict[str, float | None]:
        """The mean of each class over the steps in which the classes were measured that most steps have."""
        pattern, sums = max(self.by_pattern.items(), key=lambda each: each[1].steps, default=(frozenset(), ClassSums()))
        return {
            name: value / sums.steps if sums.steps and (name not in OPTIONAL or name in pattern) else None
            for name, value in sums.times_ns.items()
        }


def _hang_ns(step_ns: NDArray[np.int64]) -> float:
    """The longest step in which nothing hung, in ns, by those around it."""
    return standstill_s(float(np.median(step_ns)) / 1e9) * 1e9
