"""Collectives of tensors on devices: which stream each is issued on, and which streams wait for it.

NCCL does a synchronous one on the current stream, or has that stream wait for it at once; of an asynchronous one, the
stream that is current when its Work is waited for waits. Neither makes the host wait.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from ddlprof.collect.accelerator.vector_clock import COMM, Key
from ddlprof.collect.hook_state.streams import Streams, key_of
from ddlprof.torch_private.collectives import backend_for
from ddlprof.torch_private.engine import graph_task


class DeviceCollectives:
    """Beside the hooks of collectives. What raises here is not measured."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.accelerator = streams.accelerator
        self._ways: WeakKeyDictionary[Any, Key] = WeakKeyDictionary()
        """The stream that was current when each Work that the script holds was issued."""
        self._graph_task = graph_task(torch)
        self._latest: Any = None
        """Held until the script has got it, so that it gets the very same object."""
        self._in_backward: dict[str, tuple[Any, Any]] = {}
        """For each group: itself, and the Work of its last collective in this backward."""
        self._sides: dict[int, Any] = {}
        self._kinds: dict[Any, bool] = {}

    def issued(self, collective: Any, device: Any, asynchronous: bool) -> bool:
        """Called before the collective is issued; True if the clock's stream does it, or waits for it, at once."""
        current = self.accelerator.current_stream(device)
        if not asynchronous:
            clock = self.streams.clock_stream
            if clock is not None and current == clock:
                return True
            collective.way = key = key_of(current)
            self.streams.carry(key, COMM, collective)
            return False
        collective.way = key_of(current)
        return False

    def is_on(self, device: Any) -> bool:
        """Whether a tensor's device is of the kind whose streams are looked at."""
        known = self._kinds.get(device)
        if known is None:
            known = self._kinds[device] = device.type == self.accelerator.kind
        return known

    def follow(self, collective: Any, group: Any, work: Any) -> None:
        """An asynchronous one has been issued."""
        self._latest = work
        self._ways[work] = collective.way
        if self._graph_task() != -1:
            self._in_backward[collective.group] = group, work

    def waits(self, work: Any) -> bool:
        """Whether the step waits when the current stream is to wait for a Work; any other stream takes it on."""
        current = self.streams.current()
        if current is None:
            return True
        if self.accelerator.is_capturing():
            return False
        way = self._ways.get(work)
        if work is self._latest:
            self._latest = None
        if self.streams.is_clock(current):
            self.streams.reach(way or key_of(current))
            return True
        self.streams.note(current, COMM, source=way)
        return False

    def backward_computed(self) -> Any:
        """DDP is about to wait for the collectives of this backward: a device event for the end of the last of them.

        A stream of our own waits for them, so that nothing is put on those that work. By their futures, as a Work's own
        wait would let go of the memory that it keeps for the script's streams.
        """
        works, self._in_backward = list(self._in_backward.values()), {}
        clock = self.streams.clock_stream
        self.streams.reach(*(self._ways[work] for _, work in works if work in self._ways))
        if clock is None or not works or self.accelerator.is_capturing():
            return None
        if not all(_never_blocks(group, clock.device, self.accelerator.backend) for group, _ in works):
            return None
        side = self._sides.get(clock.device_index)
        if side is None:
            side = self._sides[clock.device_index] = self.accelerator.beside(clock.device)
        with self.accelerator.on_stream(side):
            for _, work in works:
                work.get_future().wait()
        return self.streams.recorder.device.mark(side)

    def backward_over(self) -> None:
        """Lets go of everything held for the backward."""
        self._in_backward.clear()
        self._latest = None


def _never_blocks(group: Any, device: Any, backend: str | None) -> bool:
    """NCCL's futures are done when the collective is issued: streams wait for them, the host does not."""
    return bool(backend_for(group, device).name() == backend)
