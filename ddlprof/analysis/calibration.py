"""The time that a collective would take among ranks of one machine, from ladders of collectives timed there.

A ring of n ranks does an all-reduce in 2 (n - 1) rounds that move 2 (n - 1) / n of the bytes over the busiest link
(Patarasuk and Yuan, 2009); the other operations' rounds and bytes follow from their share of that (`bus_factor`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlprof.analysis.collectives import bus_factor
from ddlprof.model.records import Calibration, CollectiveShape


class Ladders:
    """A ladder for each operation that was timed. Others are scaled from the all-reduce.

    Rungs of fewer than two ranks are left out: nothing was transferred, so these lines are damaged.
    """

    def __init__(self, rungs: Sequence[Calibration]) -> None:
        rungs = [rung for rung in rungs if rung.ranks > 1]
        self._of = {op: Ladder([rung for rung in rungs if rung.op == op]) for op in {rung.op for rung in rungs}}

    def transfer_us(self, shape: CollectiveShape) -> float | None:
        """The microseconds that the collective would take if its ranks shared a machine; None without a ladder."""
        plain = shape.op.replace("_", "")
        ladder = next((of for op, of in self._of.items() if plain.startswith(op)), self._of.get("allreduce"))
        return ladder.transfer_us(shape) if ladder else None


class Ladder:
    """Durations of one operation, to be read between the rungs and scaled to other operations and sizes of group."""

    def __init__(self, rungs: Sequence[Calibration]) -> None:
        """`rungs`: at least one, of one operation among two or more ranks."""
        self.ranks, self.op = rungs[0].ranks, rungs[0].op
        # Noise only ever adds: the shortest duration of a size holds, and no transfer takes longer than a larger one.
        shortest = {rung.bytes: rung.duration_ns for rung in sorted(rungs, key=lambda rung: -rung.duration_ns)}
        sizes = sorted(shortest)
        self._bytes = np.array(sizes, dtype=float)
        durations_us = np.array([shortest[size] / 1000 for size in sizes])
        self._us = np.minimum.accumulate(durations_us[::-1])[::-1]

    def transfer_us(self, shape: CollectiveShape) -> float:
        """The microseconds that the collective would take if its ranks shared a machine."""
        own = bus_factor(self.op, self.ranks)
        wanted = bus_factor(shape.op, shape.ranks)
        rounds = wanted * shape.ranks / (own * self.ranks)
        latency_us = float(self._us[0])
        return latency_us * rounds + (self._timed_us(shape.bytes) - latency_us) * wanted / own

    def _timed_us(self, size: int) -> float:
        if size <= self._bytes[-1] or len(self._bytes) < 2:
            return float(np.interp(size, self._bytes, self._us))
        slope = (self._us[-1] - self._us[-2]) / (self._bytes[-1] - self._bytes[-2])
        return float(self._us[-1] + slope * (size - self._bytes[-1]))
