"""What an update reads and writes is told by the optimizer's groups, as a trace of the update shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddlprof.collect.facts.optimizer_facts import update_of
from ddlprof.recommender.compute.optimizers import optimizer_named

ELEMENTS, TENSORS = 64 * 64 + 64, 2
Make = Callable[[Any], Any]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
}


class Moved(TorchDispatchMode):
    """Elements that an update reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for argument, value in zip(func._schema.arguments, args, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            self._add(value, 2 if writes else 1)
        self._add(out, 1)
        return out

    def _add(self, value: Any, times: int) -> None:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, Tensor) and each.numel() > 1:
                self.elements += times * each.numel()


def trained(make: Make) -> tuple[nn.Module, Any]:
    """A layer with gradients and an optimizer that has made an update."""
    layer = nn.Linear(64, 64)
    optimizer = make(layer.parameters())
    layer(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    return layer, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_are_about_those_of_the_update(name: str) -> None:
    _, optimizer = trained(OPTIMIZERS[name])
    (found,) = update_of(optimizer).operators()
    with Moved() as moved:
        optimizer.step()
    assert (found.kind, found.phase, found.dtype, found.shape) == (
        "optimizer",
        "optimizer",
        "fp32",
        (ELEMENTS, TENSORS),
    )
    assert found.name == f"_foreach_{name}_"
    assert 0.8 <= found.bytes / (4 * moved.elements) <= 1.25
    assert found.grows is None
    assert found.fixed_bytes == found.bytes


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: torch.optim.AdamW(p), "adamw"),
        (lambda p: torch.optim.AdamW(p, fused=True), "adamw-fused"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False), "sgd-momentum-single"),
        (lambda p: torch.optim.SGD(p, 0.1, fused=True), "sgd-fused"),
        (lambda p: torch.optim.Adam(p, amsgrad=True, fused=True), "amsgrad-fused"),
        (lambda p: torch.optim.Adagrad(p, foreach=True), "adagrad-foreach"),
    ],
)
def test_the_name_is_one_that_can_be_asked_for(make: Make, name: str) -> None:
    """And the update is then the one that would be computed for it."""
    _, optimizer = trained(make)
    update = update_of(optimizer)
    assert update.full_name == name
    (found,) = update.operators()
    (asked_for,) = optimizer_named(name).operators(ELEMENTS, TENSORS, "fp32", 4)
    assert (found.name, found.shape, found.launches) == (asked_for.name, asked_for.shape, asked_for.launches)
    assert found.bytes == pytest.approx(asked_for.bytes)


class Strange(torch.optim.Optimizer):
    """Keeps one copy of each parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = parameter.detach().clone()


def test_an_optimizer_that_nobody_knows() -> None:
    update = update_of(trained(Strange)[1])
    assert update.full_name == "strange"
    (found,) = update.operators()
    assert found.bytes == 4 * ELEMENTS * (3 + 7)


def test_parameters_without_gradients_and_of_several_types() -> None:
    frozen, half = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD([{"params": [frozen, half]}, {"params": list(layer.parameters())}], 0.1)
    (layer(torch.ones(2, 4)).sum() + half.sum()).backward()
    found = {each.dtype: each.shape for each in update_of(optimizer).operators()}
    assert found == {"bf16": (8, 1), "fp32": (20, 2)}


def test_nothing_is_changed() -> None:
    layer, optimizer = nn.Linear(4, 4), None
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2, 4)).sum().backward()
    update_of(optimizer)
    assert not optimizer.state  # which makes an entry for whoever asks it


@pytest.mark.parametrize("broken", [object(), type("NoGroups", (), {"param_groups": []})()])
def test_what_is_no_optimizer_raises(broken: Any) -> None:
    with pytest.raises((AttributeError, IndexError)):
        update_of(broken)


class Own(torch.optim.SGD):
    """An optimizer of a script's own."""


@pytest.mark.parametrize(
    ("make", "switch", "loops"),
    [
        (lambda p: torch.optim.Adam(p, foreach=False), "fused", True),
        (lambda p: torch.optim.Adam(p), "fused", True),  # on processors
        (lambda p: torch.optim.Adam(p, fused=True), "fused", False),
        (lambda p: torch.optim.Adam(p, foreach=True), "fused", False),
        (lambda p: torch.optim.RMSprop(p), "foreach", True),
        (lambda p: torch.optim.RMSprop(p, foreach=True), "foreach", False),
        (lambda p: Own(p, 0.1), "", None),
    ],
)
def test_whether_an_update_is_a_loop_and_what_ends_it(make: Make, switch: str, loops: bool | None) -> None:
    update = update_of(trained(make)[1])
    assert (update.switch, update.loops, update.tensors) == (switch, loops, TENSORS)


@pytest.mark.parametrize(("optimizer", "history"), [(torch.optim.LBFGS, 100), (torch.optim.SGD, None)])
def test_how_much_it_keeps_is_read(optimizer: Any, history: int | None) -> None:
    assert update_of(optimizer(nn.Linear(2, 2).parameters(), lr=0.1)).history == history
