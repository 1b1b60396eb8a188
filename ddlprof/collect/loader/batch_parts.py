"""Of how many tensors a batch of the loader consists, and how many bytes they have, by the batches of the first steps.

A worker hands over each tensor of a batch by itself, through a file of shared memory of its own.
"""

from __future__ import annotations

from collections import UserDict
from typing import Any

from ddlprof.collect.loader.batch import is_tensor
from ddlprof.collect.loader.repeats import RepeatedBatches
from ddlprof.torch_private.engine import no_torch_function

_MOST = 10_000
"""More items than this are not looked at: their number says enough."""


class BatchParts:
    """The largest batch that was looked at. None: none was, or its size cannot be told."""

    def __init__(self) -> None:
        self.tensors: int | None = None
        self.bytes: int | None = None
        self.repeats = RepeatedBatches()

    def loaded(self, batch: Any) -> None:
        """Called with a batch of the loader. Runs no code of the user's."""
        with no_torch_function():
            tensors = _tensors(batch)
            sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if hasattr(tensor, "element_size")]
        if tensors:
            self.tensors = max(self.tensors or 0, len(tensors))
            self.bytes = max(self.bytes or 0, sum(sizes))
        self.repeats.loaded(tensors)


def _tensors(batch: Any) -> list[Any]:
    """The tensors in lists, tuples and dicts, however deep."""
    found: list[Any] = []
    left, looked = [batch], 0
    while left and looked < _MOST:
        item = left.pop()
        looked += 1
        kind = type(item)
        if is_tensor(item):
            found.append(item)
        elif issubclass(kind, UserDict):
            left.append(item.data)
        elif issubclass(kind, dict):
            left.extend(dict.values(item))
        elif issubclass(kind, tuple):
            left.extend(tuple.__iter__(item))
        elif issubclass(kind, list):
            left.extend(list.__iter__(item))
    return found
