"""The interface of a kind of accelerator: clock, streams, copies, profiler windows, counters and memory.

`cuda.py` implements it for CUDA, `generic.py` for every other kind that torch knows; `known.py` is the table of all
kinds. What hooks ask often is an attribute that holds a function, mostly one of torch's, which saves a call. A kind
that lacks something keeps the value given here, and that is then not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ddlprof.collect.install import Uninstall
from ddlprof.model.kernels import Activity


def current_kind(torch: Any) -> str | None:
    """The kind of torch's accelerator, by its `torch.device.type`. Initialises nothing.

    None: there is none, or torch is older than 2.6 and cannot tell.
    """
    accelerator = getattr(torch, "accelerator", None)
    device = None if accelerator is None else accelerator.current_accelerator()
    return None if device is None or device.type == "cpu" else str(device.type)  # torch 2.6 may answer with the CPU


class Driver(Protocol):
    """What the clock needs from one device."""

    def make_event(self) -> Any:
        """A new event that can be timed: it has `query`, `synchronize` and `elapsed_time`."""

    def record(self, event: Any, stream: Any) -> None:
        """Records an event on a stream."""

    def aside(self) -> AbstractContextManager[Any]:
        """A context in which calls go to this device, on a stream of our own, and end no capture of a graph."""

    @property
    def own_stream(self) -> Any:
        """A stream that is idle, on which an event is passed at once; None if the device has one stream only."""


class DeviceProfiler(Protocol):
    """The profiler that records a window. A process has only one."""

    warning: str | None
    """A warning that a window may slow down later steps; None if it does not."""

    def why_not(self) -> str | None:
        """Why the profiler cannot be started now; None if it can."""

    def start(self) -> None: ...

    def stop(self) -> Any:
        """Stops recording; returns the argument for `activities`, which may be called in another thread."""

    def activities(self, result: Any) -> list[Activity]:
        """The activities of the device, with times in unix time."""

    def watch(self, make_way: Callable[[], None]) -> Uninstall:
        """`make_way` is called before a profiler of the script starts. Returns what ends this."""


class Counters(Protocol):
    """Counters of the device of this process. None: not known now. A counter that raises is not read again.

    A subclass need not implement the last six.
    """

    whose: str | None
    """A name for what the counters cover, if that is not one process on a whole device."""

    def look(self) -> None:
        """Called before the counters are read: the process may use another device by now."""
        return

    def percent(self) -> float | None: ...

    def memory_bytes(self) -> int | None: ...

    def power_w(self) -> float | None: ...

    def power_limit_w(self) -> float | None:
        return None

    def clock_mhz(self) -> float | None:
        return None

    def temperature_c(self) -> float | None:
        return None

    def throttle_reasons(self) -> int | None:
        """Reasons for a low clock, as NVML's bits; see `ddlprof.analysis.rules.signals`."""
        return None

    def energy_j(self) -> float | None:
        """The energy taken so far, in joules, from an arbitrary beginning."""
        return None

    def health(self) -> dict[tuple[str, str], int]:
        """The device's counters of `ddlprof.model.health` by name and place, as far as it tells them."""
        return {}

    def close(self) -> None: ...


class Accelerator(Protocol):
    """One kind of accelerator, accessed through the given torch. Creating the object initialises no device."""

    kind: str
    """The accelerator's `torch.device.type`."""

    # -- whether it may be used now

    in_use: Callable[[], bool]
    """Whether the script has initialised the device. Before that, calls to it would initialise it."""
    tells_use: bool = True
    """Whether torch tells that. If not, the kind is in use once `see` was called, and gets its hooks then."""
    is_capturing: Callable[[], bool]
    """Whether work of the current stream is being captured into a graph. The device must then not be queried."""

    # -- streams: a kind with one stream returns any object that equals itself

    current_stream: Callable[..., Any]
    """The current stream of the given device, or of the current device if none is given."""
    default_stream: Callable[..., Any]
    event_type: Any = None
    """The class of events whose `record`, `wait` and `synchronize` order streams."""
    stream_type: Any = None
    """The class of streams whose `synchronize` makes the host wait."""
    device_wait: tuple[Any, str] | None = None
    """Object and name of the function that makes the host wait for the whole device."""
    graph_types: tuple[Any, ...] = ()
    """The classes of graphs, with `capture_begin`, `capture_end` and `replay`."""
    backend: str | None = None
    """The backend of torch.distributed whose collectives make streams wait, not the host."""

    # -- copies

    holds: Callable[[Any], bool]
    """Whether a tensor, or a tensor type, is in the memory of this kind of device."""

    def __init__(self, torch: Any) -> None: ...

    @staticmethod
    def is_current(torch: Any) -> bool:
        """Whether this is the kind that torch computes on here, as far as it knows by now. Initialises nothing."""

    # -- clock

    def driver(self, device: Any) -> Driver:
        """The driver of one device."""

    def name(self, device: Any) -> str:
        """The name of the device given by its maker."""

    # -- optional

    def see(self) -> None:
        """Called when a tensor on such a device was seen, if hooks do not watch for the device from the start."""
        return

    def lacking(self) -> str:
        """What is not measured on such a device, and why, for people; empty if nothing is lacking."""
        return ""

    def device_names(self) -> list[str]:
        """The names of the devices that torch can use here."""
        return []

    def beside(self, device: Any) -> Any:
        """A stream of our own on the device; used only if `backend` is in use."""
        raise LookupError(f"{self.kind} has one stream")

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which work goes to that stream."""
        raise LookupError(f"{self.kind} has one stream")

    def profiler(self) -> DeviceProfiler | None:
        """The profiler. Raises AttributeError or TypeError if this build of torch has none."""
        return None

    def sees_kernels(self) -> bool:
        """Whether torch's profiler records activities of this kind of device."""
        return False

    def uses_tf32(self, device: Any, convolutions: bool) -> bool:
        """Whether float32 convolutions, or matrix products, are computed in TF32."""
        return False

    def counters(self) -> Counters | None:
        """The counters of the device that this process uses."""
        return None

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        """The peak of bytes in tensors of this process on the given or current device. Never resets torch's mark."""
        return None

    def peak_reserved_bytes(self, device: Any = None) -> int | None:
        """The peak of bytes that torch's allocator took from the device, cached blocks included."""
        return None


class NoAccelerator(Accelerator):
    """Stands for no accelerator: no device is in use, and no tensor is on one."""

    kind = "none"

    def __init__(self, torch: Any) -> None:
        self.current_stream = self.default_stream = lambda device=None: None

    in_use = is_capturing = staticmethod(lambda: False)
    holds = staticmethod(lambda tensor: False)

    @staticmethod
    def is_current(torch: Any) -> bool:
        """False: there is no such device."""
        return False

    def driver(self, device: Any) -> Driver:
        """Raises LookupError: there is no device."""
        raise LookupError(device)

    def name(self, device: Any) -> str:
        """Raises LookupError: there is no device."""
        raise LookupError(device)
