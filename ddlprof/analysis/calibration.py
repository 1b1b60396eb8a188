"""What a collective would take among ranks of one machine, from a ladder of all-reduces timed there.

A ring of n ranks does an all-reduce in 2 (n - 1) rounds that move 2 (n - 1) / n of the bytes over the busiest link
(Patarasuk and Yuan, 2009); the other operations' rounds and bytes follow from their share of that (`bus_factor`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlprof.analysis.collectives import bus_factor
from ddlprof.model.records import Calibration, CollectiveShape


class Ladder:
    """Durations of the calibration, to be read between the rungs and scaled to other operations and sizes of group."""

    def __init__(self, rungs: Sequence[Calibration]) -> None:
        ordered = sorted(rungs, key=lambda rung: rung.bytes)
        self.ranks = ordered[0].ranks
        self._bytes = np.array([rung.bytes for rung in ordered], dtype=float)
        # A larger transfer that was timed shorter is noise.
        self._us = np.maximum.accumulate([rung.duration_ns / 1000 for rung in ordered])

    def transfer_us(self, shape: CollectiveShape) -> float:
        """Microseconds that the collective would take if its ranks shared a machine."""
        own = bus_factor("allreduce", self.ranks)
        wanted = bus_factor(shape.op, shape.ranks)
        rounds = wanted * shape.ranks / (own * self.ranks)
        latency_us = float(self._us[0])
        return latency_us * rounds + (self._all_reduce_us(shape.bytes) - latency_us) * wanted / own

    def _all_reduce_us(self, size: int) -> float:
        if size <= self._bytes[-1] or len(self._bytes) < 2:
            return float(np.interp(size, self._bytes, self._us))
        slope = (self._us[-1] - self._us[-2]) / (self._bytes[-1] - self._bytes[-2])
        return float(self._us[-1] + slope * (size - self._bytes[-1]))
