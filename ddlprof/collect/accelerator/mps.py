"""Apple's GPUs. They have one stream.

Torch reads the time between two of their events only after it has made the stream do all of its work, with the
interpreter's lock held. So the events are polled, and never read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

from ddlprof.collect.accelerator.polled import EventPoller, PolledEvent
from ddlprof.collect.accelerator.protocol import Accelerator, Counters, Driver, current_kind

_LACKING = (
    "times are seen up to 1 ms late, as reading those of events would make the training wait; not measured: use and "
    "power of the device, the peak of its memory (torch keeps none), --profiler-windows, --time-collectives"
)


class OneStream(NamedTuple):
    """Stands for the only stream of a device."""

    device: Any
    device_index: int = 0
    stream_id: int = 0


class Mps(Accelerator):
    """See `Accelerator`."""

    kind = "mps"
    tells_use = False
    seen: ClassVar[bool] = False
    """Whether a tensor was seen there. Torch knows this kind in every process on a Mac, and not whether it is used."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        stream = OneStream(torch.device("mps", 0))
        self.current_stream = self.default_stream = lambda device=None: stream
        self.in_use = lambda: Mps.seen
        self.is_capturing = lambda: False
        self.holds = lambda tensor: bool(getattr(tensor, "is_mps", False))

    @staticmethod
    def is_current(torch: Any) -> bool:
        """See `Accelerator`."""
        return current_kind(torch) == Mps.kind

    def driver(self, device: Any) -> Driver:
        """See `Accelerator`. Waits for the device, which torch has just begun to use."""
        self._torch.mps.synchronize()
        return MpsDriver(self._torch)

    def see(self) -> None:
        """See `Accelerator`."""
        Mps.seen = True

    def name(self, device: Any) -> str:
        """See `Accelerator`."""
        named = getattr(self._torch.backends.mps, "get_name", None)  # newer versions of torch
        return "Apple GPU" if named is None else str(named())

    def device_names(self) -> list[str]:
        """See `Accelerator`."""
        return [self.name(None)] if self._torch.backends.mps.is_available() else []

    def lacking(self) -> str:
        """See `Accelerator`."""
        return _LACKING

    def counters(self) -> Counters | None:
        """See `Accelerator`."""
        return MpsCounters(self._torch.mps)


class MpsDriver:
    """The driver of the device."""

    own_stream = None

    def __init__(self, torch: Any) -> None:
        self._watch = EventPoller(torch.mps.event.Event)

    def make_event(self) -> PolledEvent:
        """See `Driver`."""
        return self._watch.make_event()

    def record(self, event: PolledEvent, stream: Any) -> None:
        """See `Driver`."""
        event.record()

    def aside(self) -> AbstractContextManager[Any]:
        """See `Driver`. There is nowhere else to go."""
        return nullcontext()


class MpsCounters(Counters):
    """What torch tells of the device."""

    whose: str | None = "memory of the device is that of this process, with what torch keeps for later"

    def __init__(self, mps: Any) -> None:
        self._mps = mps

    def percent(self) -> float | None:
        """None: torch does not tell."""
        return None

    def memory_bytes(self) -> int | None:
        """The memory that Metal has given this process, in bytes."""
        return int(self._mps.driver_allocated_memory())

    def power_w(self) -> float | None:
        """None: torch does not tell."""
        return None

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
