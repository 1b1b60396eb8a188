"""Every kind of accelerator that torch knows, by what torch has for all of them (torch 2.6 and later).

That is `torch.accelerator`, `torch.Event`, `torch.Stream`, and the module that each kind has, such as `torch.xpu`. The
module's own classes of events and streams are taken where it has them, as scripts use those. What a module lacks is not
measured, and `lacking` says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

from ddlprof.collect.accelerator.cuda import Kineto
from ddlprof.collect.accelerator.protocol import Accelerator, Counters, DeviceProfiler, Driver, current_kind

_WAITS = ("record", "wait", "synchronize")
"""The methods of events that order streams."""
_CAPTURES = ("capture_begin", "capture_end", "replay")
"""The methods of graphs."""
_HOOKED = "waits between streams, as their classes are not Python's"
_USE = "use and power of the device, for which torch has no function that answers at once"
_MEMORY = "memory in use on the device, which its module does not tell"
_PEAK = "the peak of memory, which its module does not keep"
_WINDOWS = "--profiler-windows, as torch's profiler does not record it"
_COLLECTIVES = "--time-collectives, which is NCCL's"


class Generic(Accelerator):
    """See `Accelerator`. For the kind that is torch's current accelerator."""

    seen: ClassVar[set[str]] = set()
    """The kinds on which tensors were seen."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.kind = current_kind(torch) or ""
        self._module = module = _module(torch, self.kind)
        own = isinstance(getattr(module, "Event", None), type) and hasattr(module, "current_stream")
        self._event: type = module.Event if own else torch.Event
        self._stream: Any = getattr(module, "Stream", torch.Stream) if own else torch.Stream
        self.current_stream = module.current_stream if own else torch.accelerator.current_stream
        self.default_stream = getattr(module, "default_stream", None) or self.current_stream
        self.tells_use = hasattr(module, "is_initialized")
        self.in_use: Callable[[], bool] = getattr(module, "is_initialized", lambda: self.kind in Generic.seen)
        self.is_capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", lambda: False)
        self.event_type = self._event if _is_hookable(self._event, _WAITS) else None
        self.stream_type = self._stream if _is_hookable(self._stream, ("synchronize",)) else None
        if inspect.isfunction(getattr(module, "__dict__", {}).get("synchronize")):
            self.device_wait = module, "synchronize"
        of_any_kind = getattr(torch.accelerator, "Graph", None)  # torch 2.13 and later
        graphs = (of_any_kind, getattr(module, f"{self.kind.upper()}Graph", None))  # such as torch.xpu.XPUGraph
        self.graph_types = tuple(graph for graph in graphs if _is_hookable(graph, _CAPTURES))
        name = f"is_{self.kind}"
        self.holds = lambda tensor: bool(getattr(tensor, name, False))
        if not hasattr(torch.Tensor, name):
            self.holds = lambda tensor: getattr(getattr(tensor, "device", None), "type", None) == self.kind

    @staticmethod
    def is_current(torch: Any) -> bool:
        """See `Accelerator`."""
        return current_kind(torch) is not None

    def see(self) -> None:
        """See `Accelerator`."""
        Generic.seen.add(self.kind)

    def driver(self, device: Any) -> Driver:
        """See `Accelerator`. Waits for the device, which torch has just begun to use."""
        return GenericDriver(self._torch, self._module, device, self._event, self._stream, self.current_stream(device))

    def name(self, device: Any) -> str:
        """See `Accelerator`."""
        try:
            return str(self._module.get_device_name(device))
        except Exception:  # many modules have no such function, or one with other parameters
            return f"{self.kind.upper()} device"

    def device_names(self) -> list[str]:
        """See `Accelerator`."""
        if not self._torch.accelerator.is_available():
            return []
        devices = range(self._torch.accelerator.device_count())
        return [self.name(self._torch.device(self.kind, index)) for index in devices]

    def lacking(self) -> str:
        """See `Accelerator`."""
        parts = [
            (self.event_type is None, _HOOKED),
            (True, _USE),
            (not hasattr(self._module, "mem_get_info"), _MEMORY),
            (not hasattr(self._module, "max_memory_allocated"), _PEAK),
            (not self.sees_kernels(), _WINDOWS),
            (True, _COLLECTIVES),
        ]
        return "not measured: " + "; ".join(text for lacks, text in parts if lacks)

    def profiler(self) -> DeviceProfiler | None:
        """See `Accelerator`."""
        return Kineto(self._torch, self.kind.upper(), self.is_capturing) if self.sees_kernels() else None

    def sees_kernels(self) -> bool:
        """See `Accelerator`."""
        public = self._torch.profiler
        activity = getattr(public.ProfilerActivity, self.kind.upper(), None)
        in_traces = hasattr(self._torch.autograd.DeviceType, self.kind.upper())
        return in_traces and activity in public.supported_activities()

    def counters(self) -> Counters | None:
        """See `Accelerator`."""
        return ModuleCounters(self._torch, self._module)

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak("max_memory_allocated", device)

    def peak_reserved_bytes(self, device: Any = None) -> int | None:
        """See `Accelerator`."""
        return self._peak("max_memory_reserved", device)

    def _peak(self, name: str, device: Any) -> int | None:
        function = getattr(self._module, name, None)
        return int(function(device)) if function is not None and self.in_use() else None


class GenericDriver:
    """The driver of one device. Raises RuntimeError if its events cannot be timed, after waiting for two of them."""

    def __init__(
        self, torch: Any, module: Any, device: Any, event: type, stream: Any, current: Any
    ) -> None:  # fmt: skip
        """`event`, `stream`: their classes; `current`: the stream that the training computes on."""
        self._torch = torch
        self._module = module
        self._device = device
        self._make = partial(event, enable_timing=True)
        if event is torch.Event:
            self._make = partial(event, device, enable_timing=True)
        self._record: Callable[..., None] = event.record  # type: ignore[attr-defined]  # the class's own: no hook of ours sees it
        self.own_stream: Any = _other_stream(stream, device, current)
        if self.own_stream is None:
            current.synchronize()  # so that the first anchor is passed at once, which an idle stream does without
        self._try()

    def _try(self) -> None:
        stream = self.own_stream
        with self.aside():
            first, last = self.make_event(), self.make_event()
            for event in (first, last):
                self.record(event, stream)
            last.synchronize()
            if not first.elapsed_time(last) >= 0:
                raise RuntimeError("its events tell no time")

    def make_event(self) -> Any:
        """See `Driver`."""
        return self._make()

    def record(self, event: Any, stream: Any) -> None:
        """See `Driver`. Without a stream, the event is recorded on the current one."""
        if stream is None:
            self._record(event)
        else:
            self._record(event, stream)

    def aside(self) -> AbstractContextManager[Any]:
        """See `Driver`."""
        return nullcontext() if self.own_stream is None else self._aside()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        # as in `CudaDriver`: leaving the stream first makes no context on the former device
        device = getattr(self._module, "device", None) or self._torch.accelerator.device_index
        stream = getattr(self._module, "stream", None)
        of_stream = self.own_stream if stream is None else stream(self.own_stream)
        with device(self._device.index), of_stream:
            yield


class ModuleCounters(Counters):
    """What the module of a kind tells of the device on which this process holds most memory."""

    whose: str | None = None

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._module = module
        self._device = 0

    def look(self) -> None:
        """Finds the device again: a rank may have used another device before its own."""
        held = getattr(self._module, "memory_reserved", None)
        count = self._torch.accelerator.device_count()
        self._device = max(range(count), key=held) if held is not None and count > 1 else 0

    def percent(self) -> float | None:
        """None: torch.xpu.utilization waits for 0.1 s, and other modules have none."""
        return None

    def memory_bytes(self) -> int | None:
        """The memory in use by all processes, in bytes."""
        asked = getattr(self._module, "mem_get_info", None)
        if asked is None:
            return None
        free, total = asked(self._device)
        return int(total - free)

    def power_w(self) -> float | None:
        """None: torch.xpu.power_draw waits for 0.1 s, and other modules have none."""
        return None

    def clock_mhz(self) -> float | None:
        """The clock of the device in MHz."""
        return self._told("clock_rate")

    def temperature_c(self) -> float | None:
        """The temperature of the device in degrees Celsius."""
        return self._told("temperature")

    def _told(self, name: str) -> float | None:
        asked = getattr(self._module, name, None)
        return None if asked is None else float(asked(self._device))

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


def _module(torch: Any, kind: str) -> Any:
    """The module of a kind of device; if there is none, that of all accelerators, which has few of its functions."""
    try:
        return torch.get_device_module(kind)
    except RuntimeError:  # the backend has registered a name, and not yet a module
        return torch.accelerator


def _is_hookable(owner: Any, names: tuple[str, ...]) -> bool:
    """Whether these are methods that the class itself defines in Python; torch.Event and torch.Stream are of C."""
    return isinstance(owner, type) and all(inspect.isfunction(vars(owner).get(name)) for name in names)


def _other_stream(stream: Any, device: Any, current: Any) -> Any:
    """A new stream of the device; None if all its streams are one."""
    try:
        made = stream(device)
    except (RuntimeError, TypeError):  # a kind without streams
        return None
    return None if made == current else made
