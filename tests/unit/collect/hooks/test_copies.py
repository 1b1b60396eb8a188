"""Tensor methods under the copy hooks are to scripts and libraries what they were."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddlprof.collect.hooks.copies import install
from ddlprof.collect.recorder import Recorder

METHODS = ("to", "cuda", "copy_")


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    lazy: Any = vars(nn.parameter)["UninitializedTensorMixin"]
    allowed = list(lazy._allowed_methods)
    uninstall = install(Recorder(), torch)
    assert all(name in vars(Tensor) for name in METHODS)
    yield
    uninstall()
    assert not any(name in vars(Tensor) for name in METHODS)
    assert lazy._allowed_methods == allowed


class Own(Tensor):
    """Recognises a method as scripts do: by comparing, or in a table."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return "to" if func is Tensor.to else "copied" if func in {Tensor.copy_} else result


def test_a_tensor_class_recognises_the_methods() -> None:
    own: Any = torch.ones(2).as_subclass(Own)
    assert own.to(torch.float64) == "to"
    assert torch.ones(2).to(own) == "to"
    assert own.copy_(torch.zeros(2)) == "copied"
    assert torch.ones(2).copy_(own) == "copied"


def test_a_function_mode_sees_each_call_once() -> None:
    seen: list[Any] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        y = x.to(torch.float64)
    assert seen == [Tensor.to]
    assert y.dtype is torch.float64


def test_layers_without_sizes_yet_can_be_moved() -> None:
    layer = nn.LazyLinear(3).to(torch.float64)
    layer(torch.ones(2, 5, dtype=torch.float64))
    assert layer.weight.dtype is torch.float64


def test_the_methods_can_be_pickled() -> None:
    for name in METHODS:
        assert pickle.loads(pickle.dumps(getattr(Tensor, name))) is getattr(Tensor, name)


def test_a_method_that_the_script_replaces_stays() -> None:
    def mine(self: Any) -> Any:
        return self

    outer = vars(Tensor)["to"]
    uninstall = install(Recorder(), torch)
    patch: Any = Tensor
    patch.to = mine
    uninstall()
    assert vars(Tensor)["to"] is mine
    patch.to = outer


def test_nothing_is_asked_of_a_device_that_the_script_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise AssertionError("this would initialise it")

    monkeypatch.setattr(torch.cuda, "current_stream", fails)
    with torch._subclasses.FakeTensorMode():
        assert torch.empty(2).to("meta").device.type == "meta"
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            torch.ones(2).cuda()
