"""A device in pure Python, by torch's own registration of such devices, which runs behind its host.

Each of its streams is a thread that takes what it was given one after another, and sleeps for as long as that takes.
Numbers are computed on the host at once; whoever reads one waits until the device has got there. The module that torch
is given for the device has events and streams of Python, as torch.xpu and torch.npu have.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NAME = "slowly"
KERNEL_S, LARGE_KERNEL_S, COPY_S = 0.0002, 0.004, 0.003
_LARGE = ("addmm", "mm")
_VIEWS = (
    "expand", "as_strided", "select.int", "slice.Tensor", "unsqueeze", "squeeze", "squeeze.dim",
    "permute", "view", "t", "transpose.int", "_unsafe_view",
)  # fmt: skip
"""Operators that take the device no time. Torch has kernels for most of them, which know nothing of `_memory`."""


class Timeline:
    """What a stream does: a thread takes one thing after another."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.busy_s = 0.0
        threading.Thread(target=self._work, daemon=True).start()

    def launch(self, duration_s: float) -> None:
        self.given.put(duration_s)

    def mark(self) -> threading.Event:
        """Is set when everything launched so far is done; gets the attribute `at_s` before."""
        mark = threading.Event()
        self.given.put(mark)
        return mark

    def _work(self) -> None:
        while True:
            given = self.given.get()
            if isinstance(given, threading.Event):
                given.at_s = time.perf_counter()  # type: ignore[attr-defined]
                given.set()
            elif callable(given):
                given()
            else:
                begin = time.perf_counter()
                time.sleep(given)
                self.busy_s += time.perf_counter() - begin


class Stream:
    """As `torch.xpu.Stream`."""

    device_index, device_type = 0, 20
    made = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.stream_id = Stream.made
        Stream.made += 1
        self.timeline = Timeline()
        self.device = torch.device(NAME, 0)

    def synchronize(self) -> None:
        self.timeline.mark().wait()

    def query(self) -> bool:
        return self.timeline.given.empty()

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        event = Event()
        event.record(stream)
        event.wait(self)


class Event:
    """As `torch.xpu.Event`."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.mark: Any = None

    def record(self, stream: Stream | None = None) -> None:
        self.mark = (stream or Module.current_stream()).timeline.mark()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Module.current_stream()).timeline.given.put(self.mark.wait)

    def query(self) -> bool:
        return bool(self.mark.is_set())

    def synchronize(self) -> None:
        self.mark.wait()

    def elapsed_time(self, end: Event) -> float:
        if not self.enable_timing or not self.query() or not end.query():
            raise RuntimeError("both events must have been recorded and passed, and take times")
        return 1000 * float(end.mark.at_s - self.mark.at_s)


class Module:
    """What `torch.get_device_module` returns."""

    _default: Stream | None = None
    _current = threading.local()

    is_initialized = is_available = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)

    @classmethod
    def default_stream(cls, device: Any = None) -> Stream:
        cls._default = cls._default or Stream()
        return cls._default

    @classmethod
    def current_stream(cls, device: Any = None) -> Stream:
        return getattr(cls._current, "stream", None) or cls.default_stream()

    @classmethod
    @contextmanager
    def stream(cls, stream: Stream) -> Any:
        before, cls._current.stream = getattr(cls._current, "stream", None), stream
        try:
            yield
        finally:
            cls._current.stream = before

    @staticmethod
    @contextmanager
    def device(device: Any) -> Any:
        yield

    @classmethod
    def synchronize(cls, device: Any = None) -> None:
        cls.current_stream().synchronize()


Module.Event, Module.Stream = Event, Stream  # type: ignore[attr-defined]


class Bare:
    """The same without classes and functions of its own, so that torch's are all there is; those do not take times."""

    is_initialized = is_available = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)


_memory: dict[int, torch.Tensor] = {}
"""The numbers of each tensor on the device, by the address of its storage, which its shallow copies share."""


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Those of a tensor on the device; a tensor on the host is its numbers."""
    return _memory[tensor.untyped_storage()._cdata] if tensor.device.type == NAME else tensor


def _there(numbers: torch.Tensor) -> torch.Tensor:
    made = torch._C._acc.create_empty_tensor(tuple(numbers.shape), numbers.dtype)
    _memory[made.untyped_storage()._cdata] = numbers
    return made


_FREE = {"empty", "empty_strided", *(name.partition(".")[0] for name in _VIEWS)}


def register(module: Any = Module) -> None:
    """Makes torch know the device."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for name in _VIEWS:
        base, _, overload = name.partition(".")
        aten.impl(
            name, functools.partial(_run, getattr(getattr(torch.ops.aten, base), overload or "default")), "PrivateUse1"
        )
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    aten.impl("_local_scalar_dense", _read, "PrivateUse1")
    _kept.extend((everything, aten))


_kept: list[Any] = []


def _launch(duration_s: float) -> None:
    Module.current_stream().timeline.launch(duration_s)


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator: computed on the host, and on the device later."""
    given: dict[int, torch.Tensor] = {}

    def forth(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            numbers = _numbers(value)
            given[id(numbers)] = value
            return numbers
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return given[id(value)] if id(value) in given else _there(value)

    args, kwargs = pytree.tree_map(forth, (args, kwargs))
    result = operator(*args, **kwargs)
    name = str(operator).split(".")[1]
    if name not in _FREE:
        _launch(LARGE_KERNEL_S if name in _LARGE else KERNEL_S)
    return pytree.tree_map(back, result)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A copy to, from or on the device; one to the host waits."""
    _launch(COPY_S)
    if target.device.type != NAME:
        Module.synchronize()
    _numbers(target).copy_(_numbers(source))
    return target


def _read(tensor: torch.Tensor) -> Any:
    """`item`: waits for the device."""
    Module.synchronize()
    return _numbers(tensor).item()
