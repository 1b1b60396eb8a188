"""The measured steps of a job with the machines that they ran on, and which of them is most like a target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.recommender.communication.exposed import Placing
from ddlprof.recommender.strategy import STRATEGIES
from ddlprof.recommender.target import Machine
from ddlprof.recommender.workload import Measurement

Whole = NDArray[np.int64]
Kind = tuple[str, str | None]
"""The GPU and its link, as in `Machine.kind`."""
Step = tuple[int, int, str, str]
"""Samples of a GPU in one pass, passes, precision and strategy."""
_MANY = 1_000_000_000
"""More than the machines of any placement."""


class MeasuredSteps:
    """All measurements of a job, in their order."""

    def __init__(self, rows: Sequence[tuple[Measurement, Machine]]) -> None:
        self.rows = rows
        self._kinds = [machine.kind for _, machine in rows]
        self._closest: dict[tuple[Kind, int], tuple[int, ...]] = {}

    @property
    def passes(self) -> int:
        """The passes of the (first) step that was measured on a GPU."""
        return next((m.grad_accum for m, machine in self.rows if machine.gpu), 1)

    def update_share(self, strategy: str, gpus: Any) -> Any:
        """The share of the optimizer update that one of so many ranks computes, relative to the (first) measured one;
        `gpus` may be an array."""
        done = next(((m.strategy, sum(m.placement)) for m, machine in self.rows if machine.gpu), ("ddp", 1))
        return STRATEGIES[strategy].shares(gpus).states / STRATEGIES[done[0]].shares(done[1]).states

    def on(self, kind: Kind) -> list[tuple[Measurement, Machine]]:
        """Those on machines of this kind."""
        return [row for row, of_row in zip(self.rows, self._kinds, strict=True) if of_row == kind]

    def nearest(self, kind: Kind, batch_per_gpu: int, gpus: int, nodes: int) -> Measurement | None:
        """The measurement most like a target: of its kind of machines, with a batch as close as can be, then GPUs, then
        machines."""
        return min(
            (self.rows[number][0] for number in self._with_nearest_batch(kind, batch_per_gpu)),
            key=lambda m: (abs(sum(m.placement) - gpus), abs(len(m.placement) - nodes)),
            default=None,
        )

    def _with_nearest_batch(self, kind: Kind, batch_per_gpu: int) -> tuple[int, ...]:
        """The numbers of the measurements of that kind, or else of all, whose batches are closest."""
        key = kind, batch_per_gpu
        if key not in self._closest:
            distances = [
                (of_row != kind, abs(math.log(m.batch_per_gpu / batch_per_gpu)))
                for (m, _), of_row in zip(self.rows, self._kinds, strict=True)
            ]
            least = min(distances, default=None)
            self._closest[key] = tuple(number for number, distance in enumerate(distances) if distance == least)
        return self._closest[key]

    def has(self, machine: Machine, placement: Sequence[int], step: Step) -> bool:
        """Whether the very step was measured on such a machine."""
        return any(
            (m.batch_per_gpu, m.grad_accum, m.precision, m.strategy) == step
            and there == machine
            and sorted(m.placement) == sorted(placement)
            for m, there in self.rows
        )

    def by_nearest(self, kind: Kind, at: Placing, batch_per_gpu: Whole) -> Iterator[tuple[Measurement | None, Whole]]:
        """The nearest measurements of many targets, each with the places of those that it is the nearest of."""
        if not self.rows:
            yield None, np.arange(len(batch_per_gpu))
            return
        batches, of_batch = np.unique(batch_per_gpu, return_inverse=True)
        of_candidates: dict[tuple[int, ...], list[int]] = {}
        for number, batch in enumerate(batches.tolist()):
            of_candidates.setdefault(self._with_nearest_batch(kind, batch), []).append(number)
        found = np.zeros(len(batch_per_gpu), dtype=np.int64)
        for candidates, numbers in of_candidates.items():
            rows, measured = np.flatnonzero(np.isin(of_batch, numbers)), [self.rows[each][0] for each in candidates]
            more = abs(np.array([sum(m.placement) for m in measured]) - at.gpus[rows, None])
            wider = abs(np.array([len(m.placement) for m in measured]) - at.nodes[rows, None])
            found[rows] = np.array(candidates)[(more * _MANY + wider).argmin(axis=1)]
        for number in np.unique(found).tolist():
            yield self.rows[number][0], np.flatnonzero(found == number)

    def may_have(self, at: Placing, batch_per_gpu: Whole, passes: Whole) -> NDArray[np.bool_]:
        """Which of many targets may be measured ones; `has` knows."""
        found = np.zeros(len(batch_per_gpu), dtype=bool)
        for m, _ in self.rows:
            is_alike = (batch_per_gpu == m.batch_per_gpu) & (passes == m.grad_accum)
            found |= is_alike & (at.gpus == sum(m.placement)) & (at.nodes == len(m.placement))
        return found
