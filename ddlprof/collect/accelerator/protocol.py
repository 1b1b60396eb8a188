"""What ddlprof needs of a kind of accelerator: clock, streams, copies, windows, counters and memory.

CUDA's is `cuda.py`; `known.py` is the table of all. What is asked in front of the script's own work is an attribute
that holds a function, mostly torch's: it costs no call of ours. What a kind lacks keeps its value here, and is not
measured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ddlprof.collect.accelerator.kernels import Activity
from ddlprof.collect.install import Uninstall


class Driver(Protocol):
    """What the clock needs of one device."""

    def make_event(self) -> Any:
        """An event that tells times: it has `query` and `elapsed_time`."""

    def record(self, event: Any, stream: Any) -> None:
        """Records an event on a stream."""

    def aside(self) -> AbstractContextManager[Any]:
        """Calls in it are of the device, on a stream of our own, and end nobody's capture of a graph."""

    @property
    def own_stream(self) -> Any: ...


class DeviceProfiler(Protocol):
    """The profiler that a window opens, of which the process has one."""

    warning: str | None
    """What a window may cost the steps after it."""

    def why_not(self) -> str | None:
        """Why it cannot be started now, None if it can."""

    def start(self) -> None: ...

    def stop(self) -> Any:
        """Stops recording; returns what `activities` reads, possibly in another thread."""

    def activities(self, result: Any) -> list[Activity]:
        """The activities of the device, in unix time."""

    def watch(self, make_way: Callable[[], None]) -> Uninstall:
        """`make_way` is called before a profiler of the script's begins."""


class Counters(Protocol):
    """How busy the device of this process is. None: not known now; what raises is not asked again.

    Derive from it: the last four are None where a kind of device does not have them.
    """

    whose: str | None
    """Whose they are, where they are not those of one process on a whole device."""

    def look(self) -> None:
        """Called before they are read: the process may use another device by now."""
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
        """The bits of NVML, see `ddlprof.analysis.rules.signals`."""
        return None

    def close(self) -> None: ...


class Accelerator(Protocol):
    """One kind of accelerator, through the torch that it was made with. Making it initialises nothing."""

    kind: str
    """The accelerator's `torch.device.type`."""

    # -- may it be asked

    in_use: Callable[[], bool]
    """Whether the script has initialised it: before that, asking it anything would."""
    is_capturing: Callable[[], bool]
    """Whether the current stream's work is captured into a graph, so that the device must not be asked."""

    # -- streams: where there is only one, any object that equals itself

    current_stream: Callable[..., Any]
    """The current stream of the device given, or else of the current device."""
    default_stream: Callable[..., Any]
    event_type: Any = None
    """The class whose `record`, `wait` and `synchronize` order streams."""
    stream_type: Any = None
    """The class whose `synchronize` has the host wait for a stream."""
    device_wait: tuple[Any, str] | None = None
    """Owner and name of the function in which the host waits for a whole device."""
    graph_types: tuple[Any, ...] = ()
    """The classes whose `capture_begin`, `capture_end` and `replay` are those of a graph."""
    backend: str | None = None
    """The backend of torch.distributed for which streams wait, and the host does not."""

    # -- copies

    holds: Callable[[Any], bool]
    """Whether a tensor, or a tensor type, lies in its memory."""

    def __init__(self, torch: Any) -> None: ...

    @staticmethod
    def is_built(torch: Any) -> bool:
        """Whether this build of torch can use it."""

    # -- clock

    def driver(self, device: Any) -> Driver:
        """The driver of one device."""

    def name(self, device: Any) -> str:
        """The name that its maker gave it."""

    # -- what a kind may lack

    def device_names(self) -> list[str]:
        """The names of the devices that torch can use here."""
        return []

    def beside(self, device: Any) -> Any:
        """A stream of our own; asked for where `backend` is in use."""
        raise LookupError(f"{self.kind} has one stream")

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which work goes to that stream."""
        raise LookupError(f"{self.kind} has one stream")

    def profiler(self) -> DeviceProfiler | None:
        """Raises AttributeError or TypeError where this build of torch has none."""
        return None

    def sees_kernels(self) -> bool:
        """Whether torch's profiler has a timeline of it."""
        return False

    def uses_tf32(self, device: Any, convolutions: bool) -> bool:
        """Whether float32 convolutions, or products of matrices, are computed in TF32."""
        return False

    def counters(self) -> Counters | None:
        """The counters of the device that this process uses."""
        return None

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        """The most memory that tensors of this process had on the device, or the current one; never resets the mark."""
        return None

    def peak_reserved_bytes(self, device: Any = None) -> int | None:
        """The peak of what torch's allocator took, cached blocks included."""
        return None


class Absent(Accelerator):
    """Stands for no accelerator: no device is in use, and no tensor lies there."""

    kind = "none"

    def __init__(self, torch: Any) -> None:
        self.current_stream = self.default_stream = lambda device=None: None

    in_use = is_capturing = staticmethod(lambda: False)
    holds = staticmethod(lambda tensor: False)

    @staticmethod
    def is_built(torch: Any) -> bool:
        """False: nobody looks for it."""
        return False

    def driver(self, device: Any) -> Driver:
        """Raises LookupError: there is no device."""
        raise LookupError(device)

    def name(self, device: Any) -> str:
        """Raises LookupError: there is no device."""
        raise LookupError(device)
