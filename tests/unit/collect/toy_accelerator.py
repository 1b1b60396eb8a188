"""An accelerator of the tests' own: what a test sets is what it answers, whatever torch is built for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator, DeviceProfiler, Driver


@dataclass(frozen=True)
class Stream:
    """As `torch.Stream`."""

    device: str = "toy:0"
    device_index: int = 0
    stream_id: int = 0


DEFAULT = Stream()
"""The only stream, as long as a test does not say otherwise."""


class Toy(Accelerator):
    """`Toy(None, kind="cuda")` stands in for the one that torch's own methods and tensors know by name."""

    def __init__(
        self, torch: Any, kind: str = "toy", driver: Driver | None = None, profiler: DeviceProfiler | None = None
    ) -> None:
        self.kind = kind
        self.used, self.capturing = True, False
        self.stream: Any = DEFAULT
        self.in_use = lambda: self.used
        self.is_capturing = lambda: self.capturing
        self.current_stream: Callable[..., Any] = lambda device=None: self.stream
        self.default_stream = lambda device=None: DEFAULT
        self.holds = lambda tensor: bool(getattr(tensor, f"is_{kind}", False))
        self._driver, self._profiler = driver, profiler

    @staticmethod
    def is_current(torch: Any) -> bool:
        return True

    def driver(self, device: Any) -> Driver:
        assert self._driver is not None
        return self._driver

    def name(self, device: Any) -> str:
        return f"Toy {device}"

    def profiler(self) -> DeviceProfiler | None:
        return self._profiler
