"""The storages of fake tensors while a step runs: when each came and went, and how large it is.

The clock is the number of operators seen so far.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass
class Storage:
    """One piece of memory; views share it."""

    bytes: int
    born: int
    outside: bool
    """It was there before: a parameter, a buffer, an input, a constant of the model."""
    weight: bool = False
    """It is a parameter's or a buffer's."""
    gone: int | None = None
    cast_of: int | None = None
    """The storage that it is a copy of, in another type."""
    block: int | None = None
    """The block of the model that it was made in."""


class Storages:
    """Numbers storages in the order of their appearance; a number is never used again."""

    def __init__(self) -> None:
        self.now = 0
        self.block: int | None = None
        self.all: list[Storage] = []
        self._numbers: dict[int, tuple[int, Any]] = {}

    def number(self, tensor: Any, outside: bool = False, weight: bool = False) -> int:
        """The number of a tensor's storage. `outside` and `weight` hold where it was not seen before."""
        storage = tensor.untyped_storage()
        known = self._numbers.get(id(storage))
        if known is not None and known[1]() is storage:
            return known[0]
        number, key = len(self.all), id(storage)
        size = 0 if tensor.numel() == 0 else int(storage.nbytes())
        self.all.append(Storage(size, self.now, outside, weight, block=self.block))
        self._numbers[key] = number, weakref.ref(storage, lambda _: self._ends(key, number))
        return number

    def _ends(self, key: int, number: int) -> None:
        self.all[number].gone = self.now
        if self._numbers.get(key, (None,))[0] == number:
            del self._numbers[key]

    def alive(self) -> list[int]:
        """The numbers of those that are there now and did not come from outside."""
        return [n for n, each in enumerate(self.all) if each.gone is None and not each.outside]

    def weight(self, number: int) -> int | None:
        """The parameter or buffer that a storage is, or is a copy of in another type; None: neither."""
        cast = self.all[number].cast_of
        number = number if cast is None else cast
        return number if self.all[number].weight else None

    def moments(self, gradients: Iterable[int] = ()) -> list[tuple[float, float]]:
        """After each operator, the bytes of the `gradients` made so far and of all else that is not from outside."""
        kept = set(gradients)
        changes: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for number, each in enumerate(self.all):
            if each.outside:
                continue
            changes[each.born][1] += each.bytes
            if number in kept:
                changes[each.born][1] -= each.bytes
                changes[each.born][0] += each.bytes
            elif each.gone is not None:  # an operator's operands are still there while it makes its result
                changes[each.gone + 1][1] -= each.bytes
        made = rest = 0
        found = []
        for time in sorted(changes):
            made, rest = made + changes[time][0], rest + changes[time][1]
            found.append((float(made), float(rest)))
        return found
