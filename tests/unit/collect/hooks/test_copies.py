"""Which calls are timed as copies from the host to the device, and that the methods are to scripts what they were."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.copies import install
from ddlprof.collect.hooks.streams import COPY, WorkQueue
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from tests.unit.collect.toy_accelerator import Toy

METHODS = ("to", "cuda", "copy_", "type", "new_tensor", "__setitem__")
ORIGINALS = {name: getattr(Tensor, name) for name in METHODS}
CUDA = torch.device("cuda")
Call = Callable[[], Any]


class OnDevice(Tensor):
    """A tensor that says it is on a GPU."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)


class Own(Tensor):
    """Recognises methods as scripts do: by comparing, or in a table."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(NAMES.get(func, str(func)) + (" to" if func is Tensor.to else ""))
        return super().__torch_function__(func, types, args, kwargs or {})


NAMES = {original: name for name, original in ORIGINALS.items()}


class Seeing(TorchFunctionMode):
    """Notes what is called."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def accelerator() -> Toy:
    return Toy(None, "cuda")


def context(recorder: Recorder, accelerator: Accelerator | None = None, **options: Any) -> HookContext:
    return hook_context(torch, recorder, accelerator or Toy(None, "cuda"), **options)


@contextmanager
def hooks(accelerator: Accelerator | None = None) -> Iterator[Recorder]:
    recorder = Recorder()
    uninstall = install(context(recorder, accelerator))
    assert all(name in vars(Tensor) for name in METHODS)
    try:
        yield recorder
    finally:
        uninstall()
    assert not any(name in vars(Tensor) for name in METHODS)
    assert "to" in vars(nn.Module)


def recorded(call: Call, accelerator: Accelerator | None = None) -> list[int]:
    """Kinds of events that a call leaves; what asks for a device fails where there is none."""
    with hooks(accelerator) as recorder:
        with suppress(AssertionError, RuntimeError, TypeError, UserWarning):
            call()
        return [kind for kind, *_ in recorder.take_rest()]


def host() -> Tensor:
    return torch.ones(4)


def device() -> Tensor:
    return torch.ones(4).as_subclass(OnDevice)


def own() -> Any:
    return torch.ones(4).as_subclass(Own)


COPIES: dict[str, Call] = {
    "to a device's name": lambda: host().to("cuda"),
    "to a device": lambda: host().to(CUDA, non_blocking=True),
    "to a numbered device": lambda: host().to(0),
    "to a named argument": lambda: host().to(device=CUDA),
    "to a device and a type": lambda: host().to(CUDA, torch.float64),
    "to where another tensor is": lambda: host().to(device()),
    "cuda": lambda: host().cuda(),
    "cuda with a number": lambda: host().cuda(0),
    "a parameter": lambda: nn.Parameter(host()).to(CUDA),
    "a tensor class of the script's": lambda: own().to(CUDA),
    "copy_": lambda: device().copy_(host()),
    "copy_ of the script's tensor class": lambda: device().copy_(own()),
    "an item": lambda: device().__setitem__(0, torch.tensor(1.0)),
    "items": lambda: device().__setitem__(slice(2), host()[:2]),
    "type by name": lambda: host().type("torch.cuda.FloatTensor"),
    "type": lambda: host().type(vars(torch.cuda)["FloatTensor"]),
    "new_tensor": lambda: device().new_tensor([1.0]),
    "new_tensor of the host's": lambda: device().new_tensor(host()),
    "a module": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(CUDA),
    "a module by cuda()": lambda: nn.Linear(2, 2).cuda(),
}
OTHERS: dict[str, Call] = {
    "to a type": lambda: host().to(torch.float64),
    "to the host": lambda: host().to("cpu"),
    "to a tensor of the host": lambda: host().to(torch.ones(2, dtype=torch.float64)),
    "to another library's device": lambda: host().to("meta"),
    "to, wrongly": lambda: host().to(),
    "to a device from a device": lambda: device().to(CUDA),
    "cuda of a device": lambda: device().cuda(),
    "copy_ on the host": lambda: host().copy_(host()),
    "copy_ on the device": lambda: device().copy_(device()),
    "copy_ to the host": lambda: host().copy_(device()),
    "copy_, wrongly": lambda: device().copy_(None),  # type: ignore[arg-type]
    "a number": lambda: device().__setitem__(0, 1.0),
    "item of the device": lambda: device().__setitem__(slice(4), device()),
    "item on the host": lambda: host().__setitem__(0, torch.tensor(1.0)),
    "type of the host": lambda: host().type(torch.float64),
    "asking for the type": lambda: host().type(),
    "new_tensor on the host": lambda: host().new_tensor([1.0]),
    "new_tensor of the device's": lambda: device().new_tensor(device()),
    "a module's type": lambda: nn.Linear(2, 2).to(torch.float64),
    "a module without parameters": lambda: nn.ReLU().to(CUDA),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_timed_once(name: str) -> None:
    assert recorded(COPIES[name]) == [Kind.H2D_BEGIN, Kind.H2D_END]


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_are_not(name: str) -> None:
    assert recorded(OTHERS[name]) == []


def test_nothing_is_asked_of_a_device_that_the_script_does_not_use(accelerator: Toy) -> None:
    def fails(*_: Any) -> Any:
        raise AssertionError("this would initialise it")

    accelerator.used = False
    accelerator.current_stream = accelerator.is_capturing = fails
    assert recorded(lambda: host().to(CUDA), accelerator) == []


def test_nothing_is_timed_in_a_capture_while_compiling_or_in_another_thread(
    accelerator: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy: Call = lambda: device().copy_(host())  # noqa: E731

    def in_a_thread() -> None:
        thread = Thread(target=copy)
        thread.start()
        thread.join()

    def under_a_dispatch_mode() -> None:
        with TorchDispatchMode():  # fake tensors, make_fx: nothing is copied
            copy()

    assert recorded(in_a_thread) == recorded(under_a_dispatch_mode) == []
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert recorded(copy) == []
    accelerator.capturing = True
    assert recorded(copy, accelerator) == []
    accelerator.capturing = False
    assert recorded(copy, accelerator) != []


def test_copies_on_other_streams_are_noted(accelerator: Toy) -> None:
    accelerator.stream = SimpleNamespace(device_index=0, stream_id=7)
    copy: Call = lambda: device().copy_(host())  # noqa: E731
    recorder = Recorder()
    all_hooks = context(recorder, accelerator)
    uninstall = install(all_hooks)
    try:
        copy()
        noted = dict(all_hooks.streams.state.everything())
        thread = Thread(target=copy)  # of a prefetcher
        thread.start()
        thread.join()
        again = dict(all_hooks.streams.state.everything())
    finally:
        uninstall()
    source = WorkQueue((0, 7), COPY)
    assert again[source] > noted[source]
    assert recorder.take_rest() == []


def test_a_kind_without_a_method_of_its_name(accelerator: Toy) -> None:
    """Tensors go there by `to` alone."""
    recorder, toy = Recorder(), Toy(None, "toy")
    toy.holds = accelerator.holds
    assert not hasattr(Tensor, "toy")
    uninstall = install(context(recorder, toy))
    try:
        device().copy_(host())
    finally:
        uninstall()
    assert [kind for kind, *_ in recorder.take_rest()] == [Kind.H2D_BEGIN, Kind.H2D_END]


@pytest.mark.parametrize("name", METHODS)
def test_the_class_shows_the_methods_themselves(name: str) -> None:
    original = ORIGINALS[name]
    with hooks():
        method = getattr(Tensor, name)
        assert method is getattr(Own, name) is original
        assert pickle.loads(pickle.dumps(method)) is original
        lying = inspect.getattr_static(Tensor, name)
        assert lying == original
        assert NAMES[lying] == name
        assert lying.__name__ == name
        for tensor in (host(), device()):
            bound: Any = getattr(tensor, name)
            without_us = original.__get__(tensor)
            assert (bound.__name__, bound.__doc__) == (name, without_us.__doc__)
            assert bound.__self__ is tensor
            assert bound.__qualname__ in (without_us.__qualname__, f"Tensor.{name}")
            assert getattr(bound, "__module__", None) == getattr(without_us, "__module__", None)


def test_a_tensor_class_recognises_the_methods_whenever_it_looks() -> None:
    """Its table is from before the hooks."""

    def seen() -> list[str]:
        Own.seen.clear()
        x = own()
        x.to(torch.float64)
        x.copy_(torch.zeros(4))
        torch.ones(4).to(x)
        torch.ones(4).copy_(x)
        x[0] = 1
        x.type()
        return list(Own.seen)

    before = seen()
    with hooks():
        with_hooks, table = seen(), dict(NAMES)
    assert before == with_hooks == seen() == ["to to", "copy_", "to to", "copy_", "__setitem__", "type"]
    assert table == NAMES


def test_nothing_else_of_a_tensor_class_is_asked_where_there_is_a_copy() -> None:
    Own.seen.clear()
    with hooks() as recorder:
        x = own()
        with suppress(AssertionError, RuntimeError):
            x.to(CUDA)
        assert recorder.take_rest() != []
    assert Own.seen == ["to to"]


def test_a_function_mode_sees_each_call_once() -> None:
    x, y = torch.ones(4), device()
    with hooks() as recorder, Seeing() as mode:
        y.copy_(x)
        with suppress(AssertionError, RuntimeError):
            x.to(CUDA)
        x.to(torch.float64)
        x[0] = 1
        assert len(recorder.take_rest()) == 4
    assert mode.seen == [Tensor.copy_, Tensor.to, Tensor.to, Tensor.__setitem__]


def test_a_tensor_class_that_fails_when_asked_is_called_all_the_same() -> None:
    class Failing(Tensor):
        is_cpu = property(lambda self: 1 / 0)
        __torch_function__: Any = torch._C._disabled_torch_function_impl

    with hooks():
        assert torch.ones(2).as_subclass(Failing).to(torch.float64).dtype is torch.float64
        assert torch.equal(device().copy_(torch.zeros(4).as_subclass(Failing)), torch.zeros(4))


def test_layers_without_sizes_yet_can_be_moved() -> None:
    with hooks():
        layer = nn.LazyLinear(3).to(torch.float64)
        layer(torch.ones(2, 5, dtype=torch.float64))
        assert layer.weight.dtype is torch.float64


def test_a_method_that_the_script_replaces_stays() -> None:
    def mine(self: Any) -> Any:
        return self

    patch: Any = Tensor
    uninstall = install(context(Recorder()))
    patch.to = mine
    uninstall()
    assert vars(Tensor)["to"] is mine
    del patch.to


def test_the_callers_own_override_is_called() -> None:
    class Overriding(Tensor):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            return super().to(*args, **kwargs) * 2

    with hooks():
        assert torch.ones(2).as_subclass(Overriding).to(torch.float64).tolist() == [2, 2]


def test_methods_are_away_while_dynamo_traces_and_come_back_later() -> None:
    there: list[bool] = []
    work: list[Callable[[], None]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        there.append("to" in vars(Tensor))
        return graph.forward

    torch._dynamo.reset()
    uninstall = install(context(Recorder(), later=work.append))
    assert "to" in vars(Tensor)
    torch.compile(lambda x: x.to(torch.float64), backend=backend)(torch.ones(2))
    assert there == [False]
    assert "to" not in vars(Tensor)
    work.pop()()
    assert "to" in vars(Tensor)
    torch.compile(lambda x: x.to(torch.float64), backend=backend)(torch.ones(3))
    uninstall()
    work.pop()()  # too late
    assert "to" not in vars(Tensor)


def test_nothing_is_timed_where_dynamo_does_not_tell_when_it_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", ModuleType("torch._dynamo.convert_frame"))
    recorder, said = Recorder(), []
    recorder.note = lambda hook, message: said.append(hook)
    uninstall = install(context(recorder, unmeasured=lambda name: said.append(f"{name} unmeasured")))
    assert not any(name in vars(Tensor) for name in METHODS)
    assert said == ["h2d unmeasured", "h2d"]
    uninstall()
