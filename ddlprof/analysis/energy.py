"""The power that devices and machines drew while steps ran, and the energy of the whole attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ddlprof.analysis.run import RankAnalysis
    from ddlprof.model.records import Note

_READINGS = 3
"""The least readings while steps ran. The readings are about a second apart."""
COUNTERS, POWER = "counters of energy", "readings of power"


@dataclass(frozen=True)
class PowerDraw:
    """What devices of all ranks, or all machines, drew. Powers are means while steps ran, in watts."""

    watts: float
    joules: float
    """From the first reading of the attempt to the last."""
    source: str = COUNTERS


@dataclass(frozen=True)
class Energy:
    """None: not measured, or not on every rank or machine."""

    devices: PowerDraw | None
    hosts: PowerDraw | None
    """Processors and their memory, without devices, disks and fans."""

    @property
    def watts(self) -> float:
        """Everything that was measured."""
        return sum(each.watts for each in (self.devices, self.hosts) if each is not None)

    @property
    def joules(self) -> float:
        """Everything that was measured."""
        return sum(each.joules for each in (self.devices, self.hosts) if each is not None)


def energy_of(ranks: Sequence[RankAnalysis]) -> Energy | None:
    """The energy of one attempt; None where nothing was measured.

    A device whose counters are of several processes is not counted, as several ranks may be among these.
    """
    devices = [None if is_device_shared(rank.data.notes) else _of_device(rank) for rank in ranks]
    nodes: dict[int, list[RankAnalysis]] = {}
    for rank in ranks:
        nodes.setdefault(rank.data.node, []).append(rank)
    hosts = [next(filter(None, map(_of_host, together)), None) for together in nodes.values()]
    found = Energy(_sum(devices), _sum(hosts))
    return None if found.devices is None and found.hosts is None else found


def is_device_shared(notes: Sequence[Note]) -> bool:
    """Whether the counters of a rank's device are known to be of several processes, by the rank's notes."""
    return any(note.source == "context" for note in notes)


def _of_device(rank: RankAnalysis) -> PowerDraw | None:
    counted = _by_counter(rank, "gpu_energy_j")
    if counted is not None:
        return counted
    time_ns, power_w = _known(rank, "gpu_power_w")
    during = _during_steps(rank, time_ns)
    if np.count_nonzero(during) < _READINGS:
        return None
    joules = float(np.sum(np.diff(time_ns) / 1e9 * (power_w[1:] + power_w[:-1]) / 2))
    return PowerDraw(float(power_w[during].mean()), joules, POWER)


def _of_host(rank: RankAnalysis) -> PowerDraw | None:
    return _by_counter(rank, "host_energy_j")


def _by_counter(rank: RankAnalysis, name: str) -> PowerDraw | None:
    time_ns, energy_j = _known(rank, name)
    during = np.flatnonzero(_during_steps(rank, time_ns))
    if len(during) < _READINGS or (np.diff(energy_j) < 0).any():  # a counter that began anew
        return None
    first, last = during[0], during[-1]
    watts = (energy_j[last] - energy_j[first]) / ((time_ns[last] - time_ns[first]) / 1e9)
    return PowerDraw(float(watts), float(energy_j[-1] - energy_j[0]))


def _known(rank: RankAnalysis, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values = rank.data.context[name]
    known = ~np.isnan(values)
    return rank.data.context["time_ns"][known], values[known]


def _during_steps(rank: RankAnalysis, time_ns: NDArray[np.float64]) -> NDArray[np.bool_]:
    steps, steady = rank.data.steps, np.flatnonzero(rank.times.steady)
    if not len(steady):
        return np.zeros(len(time_ns), dtype=bool)
    begin, last = steps["start_ns"][steady[0]], steady[-1]
    return np.asarray((time_ns >= begin) & (time_ns <= steps["start_ns"][last] + steps["step_ns"][last]))


def _sum(parts: Sequence[PowerDraw | None]) -> PowerDraw | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    source = COUNTERS if all(part.source == COUNTERS for part in known) else POWER
    return PowerDraw(sum(part.watts for part in known), sum(part.joules for part in known), source)
