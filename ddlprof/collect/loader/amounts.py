"""Notes how much the model gets, in the first steps and, where samples differ in length, in some steps from then on.

Which steps these are follows from the number of updates, so that they are the same on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ddlprof.collect.loader.batch import arguments_tensors
from ddlprof.collect.loader.tokens import TextBatches, is_text
from ddlprof.collect.recorder import Recorder
from ddlprof.model.amounts import BatchAmount
from ddlprof.torch_private.engine import no_torch_function

_STRIDE = 4
_STEPS_BITS = 5
"""From 128 updates on the stride grows with their number: 16 to 32 steps of each doubling are noted."""
_NEVER = 1 << 62
_MIXING = 2654435761
"""Knuth's multiplicative hash."""


class Forwards(Protocol):
    """What lets a step's outermost forwards be looked at (`hooks.modules.OuterModules`)."""

    is_settled: bool
    count: Callable[[Any], None] | None


@dataclass
class _Sum:
    time_ns: int
    samples: int = 0
    values: int = 0
    is_text: bool = True


class BatchAmounts:
    """What was noted of the first steps, and of the step under way."""

    def __init__(self, recorder: Recorder, origin_ns: int) -> None:
        self._recorder = recorder
        self._origin_ns = origin_ns
        self.due = _NEVER
        """The number of updates from which on `at_update` has something to do."""
        self._of: dict[int, _Sum] = {}
        self._lengths: set[tuple[int, ...]] = set()

    def forward(self, inputs: Any) -> None:
        """Called with the arguments of an outermost forward that is trained."""
        tensor = next(iter(arguments_tensors(inputs)), None)
        with no_torch_function():  # a tensor of the script's own class would be asked
            if tensor is None or getattr(tensor, "is_nested", False):
                return
            shape, text = tuple(map(int, tensor.shape)), is_text(tensor)
        if not shape:
            return
        values = 1
        for size in shape:
            values *= size
        self._lengths.add(shape[1:])
        update = self._recorder.boundaries
        found = self._of.setdefault(update, _Sum(time.perf_counter_ns() - self._origin_ns))
        found.samples, found.values, found.is_text = found.samples + shape[0], found.values + values, text

    def begin(self, text: TextBatches) -> None:
        """Called in the helper thread after the first steps: writes what was seen, and goes on where lengths differ."""
        over = self._recorder.boundaries
        for number, update in enumerate(sorted(each for each in list(self._of) if each < over)):
            self._write(update, *((text.places, text.padding) if number == 0 else ()))
        if len(self._lengths) > 1:
            self.due = _next(over)
            self._recorder.next_update = 0

    def at_update(self, updates: int, forwards: Forwards) -> None:
        """Called between two steps once it is due: lets the next step be noted, or writes what was noted."""
        if forwards.count is None:
            self._of.clear()
            forwards.count, forwards.is_settled = self.forward, False
            self.due = updates + 1
            return
        forwards.count = None
        noted = list(self._of)
        for update in noted:
            self._write(update)
        self.due = _next(updates) if noted else _NEVER

    def _write(self, update: int, places: int = 0, padding: int = 0) -> None:
        of = self._of.pop(update)
        self._recorder.record(BatchAmount(of.time_ns, update, of.samples, of.values, of.is_text, places, padding))


def _next(updates: int) -> int:
    """The next update after which a step is noted: one in each stride, at no regular distance, since lengths may
    alternate from step to step."""
    stride = max(_STRIDE, 1 << max(0, updates.bit_length() - _STEPS_BITS))
    block = updates // stride + 1
    return block * stride + (block * _MIXING >> 16) % stride
