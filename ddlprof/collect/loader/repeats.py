"""Whether each worker of a loader gives the same batches, by the first batches of an iterable data set, and what tells
whether ranks do.

Each worker has a copy of such a data set, and goes through all of it unless the data set asks which worker it is in
(`torch.utils.data.get_worker_info`). Each rank has a copy of any.
"""

from __future__ import annotations

from typing import Any

from ddlprof.model.records import FirstBatches
from ddlprof.torch_private.engine import first_values, no_torch_function

_ROUNDS = 2
"""Batches of all workers that are compared: those of one round are equal if they repeat, those of two are not."""
_MOST_TENSORS, _VALUES = 16, 64
_MOST_BATCHES = 64
_MASK = 2**52 - 1


def batches_looked_at(loader: Any) -> int:
    """How many of its first batches are compared; 0 if it cannot repeat them."""
    from torch.utils.data import IterableDataset

    workers = int(loader.num_workers)
    if workers < 2 or not issubclass(type(loader.dataset), IterableDataset):
        return 0
    return _ROUNDS * workers if _ROUNDS * workers <= _MOST_BATCHES else 0


class RepeatedBatches:
    """Compares the first batches of the first loader."""

    def __init__(self) -> None:
        self._needed = 0
        self._digests: list[int] = []
        self._first: list[int] = []
        self._taken = False

    def begin(self, loader: Any) -> None:
        """Called when the loader is first iterated."""
        self._needed = batches_looked_at(loader)

    def loaded(self, tensors: list[Any]) -> None:
        """Called with the tensors of each batch of the first steps."""
        if tensors and len(self._first) < _ROUNDS:
            self._first.append(_digest(tensors))
        if len(self._digests) < self._needed:
            self._digests.append(_digest(tensors) if tensors else len(self._digests))

    @property
    def repeat(self) -> bool | None:
        """Whether all workers give the same batches; None: not known, or there is nothing to repeat."""
        if not self._needed or len(self._digests) < self._needed:
            return None
        each = self._needed // _ROUNDS
        first, second = set(self._digests[:each]), set(self._digests[each:])
        return len(first) == len(second) == 1 and first != second

    def take_first(self) -> FirstBatches | None:
        """What is the same on ranks that got the same first batches. None: not known, they are equal, or it was taken
        before."""
        if self._taken or len(set(self._first)) < _ROUNDS:
            return None
        self._taken = True
        return FirstBatches(_ROUNDS, hash(tuple(self._first)) & _MASK)


def _digest(tensors: list[Any]) -> int:
    """A number of the sizes and the first values of a batch, equal for equal ones."""
    with no_torch_function():
        told = [
            (tuple(tensor.shape), first_values(tensor, _VALUES))
            for tensor in tensors[:_MOST_TENSORS]
            if tensor.device.type == "cpu"
        ]
    return hash(tuple(told))
