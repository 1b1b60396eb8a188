"""What torch.cuda's classes are derived from in a build with CUDA: `_CudaStreamBase` and `_CudaEventBase`."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from scripts.lab.simulated_cuda.device import CAPTURE_ERROR, Machine, Stream

_CUDA = 1  # the number of this type of device
_HANDLES = 0x1000_0000


class StreamBase:
    """The base of `torch.cuda.Stream`."""

    machine: Machine

    def __new__(cls, priority: int = 0, **given: Any) -> Any:
        """A new stream of the current device, or an existing one by its numbers."""
        made = super().__new__(cls)
        if "stream_id" in given:
            made.timeline = cls.machine.stream(given["device_index"], given["stream_id"])
        else:
            made.timeline = cls.machine.new_stream(cls.machine.device)
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.timeline: Stream

    @property
    def stream_id(self) -> int:
        """Its number on its device."""
        return self.timeline.ident

    @property
    def device_index(self) -> int:
        """The number of the device."""
        return self.timeline.device

    @property
    def device_type(self) -> int:
        """That of CUDA."""
        return _CUDA

    @property
    def device(self) -> Any:
        """A `torch.device`."""
        import torch

        return torch.device("cuda", self.timeline.device)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle; 0 is the default stream of any device."""
        ident = self.timeline.ident
        return ident and _HANDLES * (self.timeline.device + 1) + ident

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamBase) and self.timeline is other.timeline

    def __hash__(self) -> int:
        return id(self.timeline)

    def query(self) -> bool:
        """Whether everything that was launched so far is over."""
        self.machine.touch(self.timeline.device)
        self.machine.forbid_while_capturing()
        return self.machine.clock.perf_counter_ns() >= self.timeline.free_ns

    def is_capturing(self) -> bool:
        """Whether what is launched on it is kept for a graph."""
        return self.timeline.graph is not None

    def synchronize(self) -> None:
        """Waits for it."""
        self.machine.await_stream(self.timeline)


class EventBase:
    """The base of `torch.cuda.Event`."""

    machine: Machine
    made = 0

    def __new__(cls, enable_timing: bool = False, *_: Any, **__: Any) -> Any:
        """Not on any device before it is recorded."""
        event = super().__new__(cls)
        event.enable_timing = enable_timing
        event.at_ns = None
        event.captured_by = event.timeline = None
        EventBase.made += 1
        return event

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.enable_timing: bool
        self.at_ns: int | None
        self.captured_by: Any
        self.timeline: Stream | None

    @property
    def cuda_event(self) -> int:
        """The driver's handle."""
        return id(self)

    @property
    def device(self) -> Any:
        """The device of the stream that the event was recorded on; None before."""
        import torch

        return None if self.timeline is None else torch.device("cuda", self.timeline.device)

    def record(self, stream: Any) -> None:
        """It happens when the stream has done what it was given so far."""
        machine, timeline = self.machine, stream.timeline
        if self.timeline is not None and self.timeline.device != timeline.device:
            raise RuntimeError("Event device does not match recording stream's device")
        machine.touch(timeline.device)
        self.timeline = timeline
        if timeline.graph is not None:
            self.captured_by, self.at_ns = timeline.graph, None
            return
        self.captured_by, self.at_ns = None, machine.enqueue(timeline)
        machine.clock.work(machine.event_ns)

    def wait(self, stream: Any) -> None:
        """What the stream is given from now on begins after this event."""
        timeline = stream.timeline
        self.machine.touch(timeline.device)
        if self.captured_by is not None:
            if timeline.graph is None:
                self.captured_by.add(timeline)
        elif timeline.graph is not None and self.at_ns is not None:
            timeline.graph.invalid = True
            raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
        elif self.at_ns is not None:
            timeline.free_ns = max(timeline.free_ns, self.at_ns)

    def query(self) -> bool:
        """Whether it has happened. The driver asks the calling thread's current device, which needs a context."""
        self.machine.touch(self.machine.device)
        self.machine.forbid_while_capturing()
        if self.captured_by is not None:
            raise RuntimeError(CAPTURE_ERROR)
        self.machine.ask()
        return self.at_ns is None or self.machine.clock.perf_counter_ns() >= self.at_ns

    def synchronize(self) -> None:
        """Waits for it."""
        self.machine.forbid_while_capturing()
        stream = self.timeline.ident if self.timeline is not None else 0
        self.machine.synchronized.append((threading.current_thread().name, stream))
        self.machine.clock.wait_until(self.at_ns or 0)

    def elapsed_time(self, end: EventBase) -> float:
        """Milliseconds on the device's clock, with the resolution of a 32-bit float."""
        for event in (self, end):
            if not event.enable_timing:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if event.at_ns is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if self.machine.clock.perf_counter_ns() < event.at_ns:
                raise RuntimeError("CUDA error: device not ready")
        assert self.timeline is not None
        assert end.timeline is not None
        if self.timeline.device != end.timeline.device:
            raise RuntimeError("CUDA error: invalid resource handle")
        self.machine.touch(self.timeline.device)
        self.machine.forbid_while_capturing()
        self.machine.ask()
        passed_ns = ((end.at_ns or 0) - (self.at_ns or 0)) * self.machine.clock_rate
        resolution_ns = self.machine.resolution_ns
        passed_ns = round(passed_ns / resolution_ns) * resolution_ns
        return ctypes.c_float(passed_ns / 1e6).value
