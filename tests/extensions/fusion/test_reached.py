"""What forwards and losses can see of the user's program, for which a recording holds."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.extensions.fusion.reached import Reached

weight, settings, table = 1.0, {"level": [1]}, torch.zeros(2)
counter, source = itertools.count(), random.Random(0)


def of_a_global(output: Tensor) -> Tensor:
    return output.mean() * weight


def of_a_dict(output: Tensor) -> Tensor:
    return output.mean() * settings["level"][0]


def through_another(output: Tensor) -> Tensor:
    return of_a_dict(output)


def of_a_tensor(output: Tensor) -> Tensor:
    return output.mean() * table.sum()


def of_an_iterator(output: Tensor) -> Tensor:
    return output.mean() * next(counter) * source.random()


class Loss:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor) -> Tensor:
        return output.mean() * self.calls

    def bound(self, output: Tensor) -> Tensor:
        return output.mean() * self.calls


class Net(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale[0] * weight


loss, net = Loss(), Net()


def enclosing() -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
    calls = 0

    def inner(output: Tensor) -> Tensor:
        return output.mean() * calls

    def more() -> None:
        nonlocal calls
        calls += 1

    return inner, more


inner, more = enclosing()


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (of_a_global, lambda: set_global("weight", weight + 1)),
        (of_a_dict, lambda: settings["level"].__setitem__(0, settings["level"][0] + 1)),
        (through_another, lambda: settings["level"].append(1)),
        (functools.partial(of_a_global), lambda: set_global("weight", weight + 1)),
        (of_a_tensor, lambda: table.add_(1)),
        (of_an_iterator, lambda: next(counter)),
        (of_an_iterator, source.random),
        (loss, lambda: setattr(loss, "calls", loss.calls + 1)),
        (loss.bound, lambda: setattr(loss, "calls", loss.calls + 1)),
        (inner, more),
        (functional.mse_loss, lambda: net.scale.append(2.0)),
        (functional.mse_loss, lambda: set_global("weight", weight + 1)),
    ],
)
def test_what_changes_is_seen(function: Any, change: Callable[[], Any]) -> None:
    reached = Reached(nn.Sequential(net, nn.ReLU()))
    before = reached.values(function)
    assert reached.values(function) == before
    change()
    assert reached.values(function) != before
    assert isinstance(hash(before), int)


def test_nothing_of_torch_is_looked_at() -> None:
    """So a model of torch's own layers with torch's own loss takes no time at each step."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.LSTM(2, 2))
    assert Reached(model).values(functional.cross_entropy) == ()
