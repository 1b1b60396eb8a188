"""A device that runs behind the host, and a profiler that sees of it what Kineto does. Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddlprof.collect.helper import Helper
from ddlprof.collect.hooks.collective import IssuedCollective
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.kernels import Activity

MS = 1_000_000
UNIX = 10**18
"""Unix time minus the clock of the steps."""


class Mark:
    """An event of the device."""

    def __init__(self, device: LaggingDevice, at: int) -> None:
        self.device, self.at = device, at

    def query(self) -> bool:
        return self.device.host >= self.at


class LaggingDevice:
    """Launches queue; the host goes on at once and is never more than `lead_ns` ahead."""

    def __init__(self, lead_ns: int) -> None:
        self.lead_ns = lead_ns
        self.host = self.device = 1000 * MS
        self.done: list[Activity] = []

    def launch(self, name: str, duration: int, gap: int = 0) -> None:
        """A kernel that begins `gap` after the last one ended."""
        begin = max(self.device + gap, self.host)
        self.done.append(Activity(name, begin, begin + duration))
        self.device = begin + duration
        self.host = max(self.host, self.device - self.lead_ns)

    def now(self) -> int:
        """When the device gets to what is queued now."""
        return max(self.device, self.host)

    def mark(self) -> Mark:
        return Mark(self, self.now())


class Profiler:
    """Sees only what lies within its own time on the host, whole."""

    def __init__(self, device: LaggingDevice, opening_ns: int = 300 * MS) -> None:
        self.device, self.opening_ns = device, opening_ns
        self.on: int | None = None
        self.starts = self.stops = 0
        self.reason: str | None = None
        self.failing: str = ""
        self.warning: str | None = None

    def _fails(self, where: str) -> None:
        if self.failing == where:
            raise RuntimeError(f"{where} failed")

    def why_not(self) -> str | None:
        return self.reason

    def start(self) -> None:
        self._fails("start")
        self.starts += 1
        self.device.host += self.opening_ns
        self.on = self.device.host

    def stop(self) -> Any:
        on, self.on = self.on, None
        self.stops += 1
        self._fails("stop")
        assert on is not None
        return [a for a in self.device.done if a.begin >= on and a.end <= self.device.host]

    def watch(self, make_way: Callable[[], None]) -> Uninstall:
        return lambda: None

    def activities(self, result: Any) -> list[Activity]:
        self._fails("activities")
        return [Activity(a.name, a.begin + UNIX, a.end + UNIX) for a in result]


def train(
    device: LaggingDevice, recorder: Recorder, helper: Helper, steps: int, all_reduces: Sequence[int] = (),
    seq: int = 0, drain: bool = True,
) -> int:  # fmt: skip
    """Steps of 3 ms computing, 1 ms idle, 2 ms computing, and all-reduces that computing waits for."""
    for _ in range(steps):
        recorder.emit(Kind.FORWARD_BEGIN, True, True, 4)
        device.launch("gemm", 3 * MS)
        recorder.emit(Kind.FORWARD_END, True)
        recorder.emit(Kind.BACKWARD_BEGIN)
        device.launch("gemm_backward", 2 * MS, gap=MS)
        collectives = []
        for number, duration in enumerate(all_reduces):
            collectives.append(IssuedCollective("0", seq, "allreduce", 4_000_000, 2, device.host))
            seq += 1
            recorder.emit(Kind.COLLECTIVE, collectives[-1])
            if not number:
                recorder.emit(Kind.COMM_BEGIN)
            device.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", duration)
        if all_reduces:
            recorder.emit(Kind.COMM_END, True)
        recorder.emit(Kind.BACKWARD_END)
        recorder.emit(Kind.OPTIMIZER_BEGIN, 0)
        device.launch("multi_tensor_apply_kernel", MS)
        recorder.emit(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 1))
        if drain:
            helper._drain()
    return seq
