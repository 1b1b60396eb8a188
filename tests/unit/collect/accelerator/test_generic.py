"""Every other kind: which of torch's classes are taken, what is hooked, and what is said to be lacking."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.cuda import Cuda
from ddlprof.collect.accelerator.generic import Generic
from ddlprof.collect.accelerator.protocol import current_kind


class Stream:
    """As torch.npu.Stream."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def synchronize(self) -> None:
        self.waited = True


class Event:
    """As torch.npu.Event; counts the events recorded on any stream as its time."""

    clock = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self, stream: Any = None) -> None:
        Event.clock += 1
        self.at, self.stream = Event.clock, stream

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


CURRENT = Stream("npu:0")


def npu(**more: Any) -> Any:
    """A torch with such a backend."""
    module = ModuleType("torch.npu")
    entries: list[Any] = []

    @contextmanager
    def entered(what: Any) -> Any:
        entries.append(what)
        yield

    vars(module).update(
        Event=Event, Stream=Stream, current_stream=lambda device=None: CURRENT, is_initialized=lambda: True,
        synchronize=npu, device=entered, stream=entered, **more,
    )  # fmt: skip
    accelerator = SimpleNamespace(
        current_accelerator=lambda: SimpleNamespace(type="npu"), is_available=lambda: True, device_count=lambda: 2
    )
    return SimpleNamespace(
        accelerator=accelerator, get_device_module=lambda kind: module, npu=module, entries=entries,
        Event=torch.Event, Stream=torch.Stream, Tensor=torch.Tensor, device=lambda kind, index: f"{kind}:{index}",
        profiler=torch.profiler, autograd=torch.autograd,
    )  # fmt: skip


def test_its_own_classes_are_taken_and_hooked() -> None:
    fake = npu()
    found = known.of_torch(fake)
    assert isinstance(found, Generic)
    assert (found.kind, found.event_type, found.stream_type) == ("npu", Event, Stream)
    assert found.device_wait == (fake.npu, "synchronize")
    assert found.current_stream() is found.default_stream() is CURRENT
    assert "waits between streams" not in found.lacking()
    assert "memory in use" in found.lacking()


def test_graphs_of_the_module_and_of_torch_are_hooked() -> None:
    class Graph:
        def capture_begin(self) -> None:
            pass

        def capture_end(self) -> None:
            pass

        def replay(self) -> None:
            pass

    fake = npu(NPUGraph=Graph)
    fake.accelerator.Graph = type("Graph", (Graph,), {})  # whose methods are another class's
    assert Generic(fake).graph_types == (Graph,)


def test_torchs_classes_cannot_be_hooked_and_that_is_said() -> None:
    fake = npu()
    for name in ("Event", "Stream", "current_stream", "synchronize"):
        delattr(fake.npu, name)
    fake.accelerator.current_stream = lambda device=None: CURRENT
    found = Generic(fake)
    assert found.event_type is found.stream_type is found.device_wait is None
    assert found.current_stream() is CURRENT
    assert "waits between streams, as their classes are not Python's" in found.lacking()


def test_what_the_module_tells_is_read() -> None:
    fake = npu(
        mem_get_info=lambda device: (60, 100 + device), max_memory_allocated=lambda device: 7, temperature=lambda _: 50,
        memory_reserved=lambda device: device, get_device_name=lambda device: f"Ascend {device}",
    )  # fmt: skip
    found = Generic(fake)
    assert found.device_names() == ["Ascend npu:0", "Ascend npu:1"]
    assert (found.peak_allocated_bytes("npu:0"), found.peak_reserved_bytes("npu:0")) == (7, None)
    counters = found.counters()
    assert counters is not None
    counters.look()
    assert (counters.memory_bytes(), counters.temperature_c(), counters.clock_mhz()) == (41, 50, None)
    assert counters.percent() is counters.power_w() is None


def test_a_module_that_does_not_tell_whether_it_is_used_is_found_by_its_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Generic, "seen", set())
    fake = npu()
    assert known.at_start(fake) is not None
    del fake.npu.is_initialized
    assert known.at_start(fake) is None
    found = Generic(fake)
    assert not found.in_use()
    found.see()
    assert Generic(fake).in_use()


def test_nothing_is_asked_of_a_device_that_is_not_used() -> None:
    fake = npu(max_memory_allocated=lambda device: pytest.fail("asked"))
    fake.npu.is_initialized = lambda: False
    assert Generic(fake).peak_allocated_bytes() is None


def test_its_tensors_are_known_by_their_device() -> None:
    found = Generic(npu())
    there, here = SimpleNamespace(device=SimpleNamespace(type="npu")), torch.ones(1)
    assert found.holds(there)
    assert not found.holds(here)
    assert not found.holds(torch.FloatTensor)


def test_the_clock_has_a_stream_of_its_own() -> None:
    fake = npu()
    driver = Generic(fake).driver(SimpleNamespace(type="npu", index=1))
    assert driver.own_stream is not CURRENT
    fake.entries.clear()
    with driver.aside():
        assert fake.entries == [1, driver.own_stream]
    event = driver.make_event()
    driver.record(event, CURRENT)
    assert event.stream is CURRENT


def test_a_device_with_one_stream_is_waited_for_once() -> None:
    fake = npu()
    fake.npu.Stream = type("Only", (Stream,), {"__eq__": lambda one, other: True, "__hash__": lambda one: 0})
    current = fake.npu.Stream("npu:0")
    fake.npu.current_stream = lambda device=None: current
    driver = Generic(fake).driver(SimpleNamespace(type="npu", index=0))
    assert current.waited
    assert driver.own_stream is None
    assert isinstance(driver.aside(), nullcontext)
    event = driver.make_event()
    driver.record(event, driver.own_stream)
    assert event.stream is None


def test_events_that_tell_no_time_are_no_clock() -> None:
    class Timeless(Event):
        def elapsed_time(self, end: Event) -> float:
            return float("nan")

    fake = npu()
    fake.npu.Event = Timeless
    with pytest.raises(RuntimeError, match="tell no time"):
        Generic(fake).driver(SimpleNamespace(type="npu", index=0))


def test_a_torch_that_cannot_be_asked_has_none() -> None:
    assert known.of_torch(SimpleNamespace(accelerator=SimpleNamespace(current_accelerator=lambda: 1 / 0))) is None


def test_torch_before_2_6_is_asked_for_what_it_was_built() -> None:
    def old(cuda: str | None) -> Any:
        return SimpleNamespace(version=SimpleNamespace(cuda=cuda, hip=None))

    assert current_kind(old("12.4")) is None
    assert Cuda.is_current(old("12.4"))
    assert not Cuda.is_current(old(None))
    assert not Generic.is_current(old(None))


def test_the_cpu_is_no_accelerator() -> None:
    """Torch 2.6 names it where there is nothing else."""
    accelerator = SimpleNamespace(current_accelerator=lambda: torch.device("cpu"))
    assert current_kind(SimpleNamespace(accelerator=accelerator)) is None


def test_of_this_torch() -> None:
    found = known.of_torch(torch)
    assert found is None or found.kind == current_kind(torch)
