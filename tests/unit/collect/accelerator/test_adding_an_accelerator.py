"""An accelerator is a file and a line: a whole session on one that is here, with all that the protocol has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddlprof.base import real_time
from ddlprof.collect.accelerator import known, protocol
from ddlprof.collect.session import Session
from ddlprof.model import codec
from ddlprof.model.kernels import Activity
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options
from ddlprof.model.records import ContextRow, Flag, Note, StepRow, WindowRow
from ddlprof.writing.writer import rank_files
from tests.records import records_in
from tests.unit.collect.lagging_device import UNIX, LaggingDevice, Profiler
from tests.unit.collect.ticking_device import TickingDevice
from tests.unit.collect.toy_accelerator import Toy

MS = 1_000_000
STEPS, SKIPPED = 60, 10
FORWARD_MS, COPY_MS = 10, 2


@dataclass(frozen=True)
class ToyDevice:
    type: str = "toy"
    index: int = 0


class OnToy(Tensor):
    """Lies there; copying to it takes the device some time."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    is_toy = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: ToyDevice())


class Weight(nn.Parameter):
    __torch_function__: Any = torch._C._disabled_torch_function_impl
    is_toy = property(lambda self: True)
    is_cpu = property(lambda self: False)
    device = property(lambda self: ToyDevice())


class Counters(protocol.Counters):
    whose: str | None = "all the toys"

    def percent(self) -> float | None:
        return 50.0

    def memory_bytes(self) -> int | None:
        return 1000

    def power_w(self) -> float | None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Kernels(Profiler):
    """Tells what the ticking device was given."""

    def __init__(self, device: TickingDevice) -> None:
        super().__init__(LaggingDevice(0))
        self.ticking, self.launched = device, list[Activity]()

    def compute(self, milliseconds: float) -> None:
        begin = self.ticking.host_ns()
        self.ticking.now += milliseconds
        self.launched.append(Activity("toy_gemm", begin + UNIX, self.ticking.host_ns() + UNIX))

    def stop(self) -> Any:
        self.on = None
        return list(self.launched)

    def activities(self, result: Any) -> list[Activity]:
        return list(result)


class Whole(Toy):
    """The file that the page asks for."""

    def counters(self) -> Counters:
        return Counters()

    def peak_allocated_bytes(self, device: Any = None) -> int | None:
        return 2**20


class Net(nn.Module):
    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.weight, self.kernels = Weight(torch.ones(2, 2)), kernels

    def forward(self, x: Tensor) -> Tensor:
        self.kernels.compute(FORWARD_MS)
        return (self.weight * x.as_subclass(Tensor)).sum()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    device = TickingDevice(monkeypatch)
    monkeypatch.setattr(real_time.time, "time_ns", lambda: device.host_ns() + UNIX)
    kernels = Kernels(device)
    whole = Whole(torch, driver=device, profiler=kernels)

    class Line:
        is_current = staticmethod(lambda torch: True)

        def __new__(cls, torch: Any) -> Any:
            return whole

    monkeypatch.setattr(known, "KINDS", (Line,))
    return kernels


def train(session: Session, kernels: Kernels) -> None:
    net, batch = Net(kernels), torch.ones(2, 2).as_subclass(OnToy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    copying, device = torch.ones(2, 2), kernels.ticking

    class Slow(Tensor):
        """Reading it takes the device some time."""

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is Tensor.copy_:
                device.now += COPY_MS
            return super().__torch_function__(func, types, args, kwargs or {})

    for _ in range(STEPS):
        optimizer.zero_grad()
        batch.copy_(copying.as_subclass(Slow))
        net(batch).backward()
        optimizer.step()


def test_an_accelerator_is_a_file_and_a_line(kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Options(out=str(tmp_path), quiet=True, profiler_windows=1), "toy", [])
    session.recorder.clock = kernels.ticking.host_ns
    monkeypatch.setattr(session.helper, "start", lambda: None)
    session.begin()
    train(session, kernels)
    session.finish("ok", 0)

    text = rank_files(tmp_path, 0, 0)[0]
    header, records = codec.decode_header(text.read_text().split("\n")[0]), records_in(text)
    assert (header.clock, header.device) == ("device", f"Toy {ToyDevice()}")
    rows: list[StepRow] = [record for tag, record in records if tag == "s"]
    assert len(rows) == STEPS
    for row in rows[SKIPPED:]:
        if not row.flags & Flag.TRACED:
            assert (row.step_ns, row.h2d_ns) == ((FORWARD_MS + COPY_MS) * MS, COPY_MS * MS)
            assert row.compute_ns == FORWARD_MS * MS
    (window,) = [record for _, record in records if isinstance(record, WindowRow)]
    assert (window.window_ns, window.work_ns) == (2 * (FORWARD_MS + COPY_MS) * MS, 2 * FORWARD_MS * MS)
    context = [record for _, record in records if isinstance(record, ContextRow)][-1]
    assert (context.gpu_percent, context.gpu_memory_bytes, context.gpu_power_w) == (50.0, 1000, None)
    assert Manifest.read(tmp_path).training.peak_device_memory_bytes == 2**20
    assert ("n", Note("context", "all the toys")) in records
