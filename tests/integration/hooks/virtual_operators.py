"""Torch's operators on a virtual clock: they take as long as the test says, and who looks for them finds that."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ddlprof.collect.steps.loop import OperatorLog
from scripts.lab.virtual_clock import VirtualClock


class Clock(VirtualClock):
    """Beside a virtual clock, what operators have taken of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[int, int]] = []
        """Begin and end."""

    def operator(self, ns: int) -> None:
        """An operator of torch's computes for so long."""
        begin = self.perf_counter_ns()
        self.work(ns)
        self.operators.append((begin, self.perf_counter_ns()))


class Log(OperatorLog):
    """Starts and stops torch's own, and tells the times of the virtual clock instead of what that found."""

    def __init__(self, clock: Clock, real: OperatorLog) -> None:
        self._clock, self._real = clock, real
        self._begin = self._first = 0

    def start(self) -> bool:
        self._begin, self._first = self._clock.perf_counter_ns(), len(self._clock.operators)
        return self._real.start()

    def stop(self) -> Any:
        found = self._real.stop()
        if found is None:
            return None
        return [(begin - self._begin, end - self._begin) for begin, end in self._clock.operators[self._first :]]


class Operators(TorchDispatchMode):
    """Within it each operator takes `ns`, in forward, backward and update alike. Dynamo compiles nothing within it."""

    def __init__(self, clock: Clock, ns: int) -> None:
        super().__init__()
        self._clock, self._ns = clock, ns

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace != "profiler":  # the marks that an optimizer leaves for profilers, outside of its hooks too
            self._clock.operator(self._ns)
        return result
