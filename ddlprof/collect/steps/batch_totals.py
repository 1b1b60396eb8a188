"""Adds up what it took to make the batches that fed training."""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.model.records import LoaderCost


class Made(NamedTuple):
    """A batch that was made; all fields but the first are those of `Fetch`."""

    samples: int
    cpu: int
    asked: int | None
    storage: int | None
    blocked: int | None = None


class LoaderTotals:
    """Sums since the start of the run."""

    def __init__(self) -> None:
        self._samples = self._cpu = 0
        self._asked: int | None = 0
        self._storage: int | None = 0
        self._blocked: int | None = 0

    def add(self, made: Made) -> None:
        """A batch that fed training."""
        self._samples += made.samples
        self._cpu += made.cpu
        self._asked = _plus(self._asked, made.asked)
        self._storage = _plus(self._storage, made.storage)
        self._blocked = _plus(self._blocked, made.blocked)

    def cost(self, step: int) -> LoaderCost | None:
        """The sums, during that step; None if there is nothing in them."""
        if not self._samples:
            return None
        return LoaderCost(step, self._samples, self._cpu, self._asked, self._storage, self._blocked)


def _plus(total: int | None, more: int | None) -> int | None:
    """What was not counted once is not known in all."""
    return None if total is None or more is None else total + more
