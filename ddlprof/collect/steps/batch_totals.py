"""Adds up what it took to make the batches that fed training."""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.model.records import LoaderCost


class Made(NamedTuple):
    """A batch that was made; the last three fields are those of `Fetch`."""

    samples: int
    cpu: int
    asked: int | None
    storage: int | None


class LoaderTotals:
    """Sums since the start of the run."""

    def __init__(self) -> None:
        self._samples = self._cpu = 0
        self._asked: int | None = 0
        self._storage: int | None = 0

    def add(self, made: Made) -> None:
        """A batch that fed training."""
        self._samples += made.samples
        self._cpu += made.cpu
        # Bytes that were not counted once are not known in all.
        self._asked = None if self._asked is None or made.asked is None else self._asked + made.asked
        self._storage = None if self._storage is None or made.storage is None else self._storage + made.storage

    def cost(self, step: int) -> LoaderCost | None:
        """The sums, during that step; None if there is nothing in them."""
        if not self._samples:
            return None
        return LoaderCost(step, self._samples, self._cpu, self._asked, self._storage)
