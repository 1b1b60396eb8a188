"""Which device and stream the training computes on: those of the model's parameters, not the ones current at import.

A script may name `cuda:1` without making it current, and warm up on a side stream before it captures a graph. So the
first steps look at each forward, backward and update, later ones once a step, and the clock follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddlprof.collect.accelerator.clock import DeviceClock
from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.torch_private.engine import no_torch_function

MOST_MOVES = 8
"""A script that goes to and fro between streams is left on the last one."""
_UNSEEN = "copies between them are not told apart"


class DeviceSearch:
    """The search in the training thread. `found` is called once, with the first clock and the device's name."""

    def __init__(
        self,
        accelerator: Accelerator,
        capturing: Callable[[], bool],
        found: Callable[[DeviceClock, str], None],
        note: Callable[[str, str], None],
    ) -> None:
        """`capturing`: whether the device may not be asked now."""
        self.clock: DeviceClock | None = None
        self._accelerator = accelerator
        self._capturing = capturing
        self._found = found
        self._note = note
        self._device: Any = None
        self._known: set[Any] = set()
        self._moves = 0
        self._failed = self._said_several = False

    def look(self, tensors: Iterable[Any]) -> None:
        """Looks at parameters, or at what a backward begins with."""
        try:
            if not self._failed and self._accelerator.in_use():
                with no_torch_function():  # of a tensor class of the script's
                    devices = self._devices(tensors)
                if devices:
                    # A loss on the last of a model's devices does not take the clock there.
                    self._follow(devices[0] if devices[0] not in self._known else self._device)
                    self._known.update(devices)
                if len(devices) > 1 and not self._said_several:
                    self._said_several = True
                    others = ", ".join(map(str, devices[1:]))
                    self._note(
                        "device", f"the timeline is that of {devices[0]}; the model is on {others}, too: {_UNSEEN}"
                    )
        except Exception as error:
            self._give_up(error)

    def look_again(self) -> None:
        """Looks after an update whether the training has moved to another stream."""
        try:
            if self._device is not None and not self._failed:
                self._follow(self._device)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._note("device", f"not measured: {type(error).__name__}: {error}")

    def _follow(self, device: Any) -> None:
        if self._capturing():
            return
        stream = self._accelerator.current_stream(device)
        if self.clock is None:
            self._device = device
            self.clock = DeviceClock(self._accelerator.driver(device), stream, self._capturing)
            self._found(self.clock, self._accelerator.name(device))
        elif self._moves < MOST_MOVES and (device != self._device or stream != self.clock.stream):
            self._moves += 1
            if self._moves == 1:
                what = "another stream" if device == self._device else f"{device}, after {self._device}"
                self._note("device", f"the training moved to {what}: steps before that may be those of the first")
            self.clock.follow(stream, None if device == self._device else self._accelerator.driver(device))
            self._device = device

    def _devices(self, tensors: Iterable[Any]) -> list[Any]:
        """The devices of the tensors, the one with most tensors first."""
        counts: dict[Any, int] = {}
        for tensor in tensors:
            if self._accelerator.holds(tensor):
                counts[tensor.device] = counts.get(tensor.device, 0) + 1
        return sorted(counts, key=lambda device: (-counts[device], device.index or 0))
