"""What is kept of a rank's readings, beside its steps: energy as a sum so far, and the counters of a sick machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.health import HealthReading

_RECENT_NS = 60e9
"""The power is that of the readings which are at most so much older than the last one."""


@dataclass
class EnergyMeter:
    """A counter of energy, which begins anywhere and may begin anew."""

    joules: float | None = None
    """From the first reading on; None: nothing was read."""
    watts: float | None = None
    """The mean power between the latest readings."""
    _last: tuple[float, float] | None = None

    def add(self, time_ns: NDArray[np.float64], energy_j: NDArray[np.float64]) -> None:
        """Adds further readings, NaN where there is none."""
        known = ~np.isnan(energy_j)
        times, values = time_ns[known], energy_j[known]
        if not len(times):
            return
        if self._last is not None:
            times, values = np.insert(times, 0, self._last[0]), np.insert(values, 0, self._last[1])
        more = np.diff(values)
        self.joules = (self.joules or 0.0) + float(more[more > 0].sum())
        self._last = float(times[-1]), float(values[-1])
        recent = np.flatnonzero(times >= times[-1] - _RECENT_NS)[0]
        seconds = (times[-1] - times[recent]) / 1e9
        if seconds > 0 and (more[recent:] >= 0).all():
            self.watts = float((values[-1] - values[recent]) / seconds)


@dataclass
class HealthReadings:
    """The readings of the recent steps, and of each counter the last one before."""

    readings: list[HealthReading] = field(default_factory=list)

    def add(self, readings: list[HealthReading]) -> None:
        """Adds further readings, which are in the order of their times."""
        self.readings += readings

    def drop_before(self, time_ns: int) -> None:
        """Forgets what is not needed to know which counters moved since."""
        older = {(each.counter, each.where): each for each in self.readings if each.time_ns < time_ns}
        self.readings = [*older.values(), *(each for each in self.readings if each.time_ns >= time_ns)]
