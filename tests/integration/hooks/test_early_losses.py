"""Losses that are computed, or begin to be, outside of any call of a module: they are the training's computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.integration.hooks.conftest import Layers, Profiling
from tests.integration.hooks.test_loops import last

STEPS, SLEEP_S = 24, 0.02
LAYERS_S = 0.006
"""Two linear layers on the virtual clock, forward and backward."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.linear(x, self.weight), self.last.weight)


class OwnCall(Model):
    def __call__(self, *args: Any) -> Tensor:
        return self.forward(*args)


class Loss(Model):
    """Has a method that computes before it calls the first layer."""

    def loss(self, x: Tensor) -> Tensor:
        total: Tensor = functional.linear(x, self.weight).sum() + self.last(x).sum()
        return total


def own_call() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = OwnCall()
    return model, lambda x: model(x).sum()


def called_forward() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Model()
    return model, lambda x: model.forward(x).sum()


def method() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Loss()
    return model, model.loss


def batches(loader: bool) -> Iterable[tuple[Tensor]]:
    data = TensorDataset(torch.randn(4 * STEPS, 8))
    return DataLoader(data, batch_size=4) if loader else [(data[4 * i : 4 * i + 4][0],) for i in range(STEPS)]


def train(make: Callable[[], Any], loader: bool, between: Callable[[], None], zero: str) -> list[float]:
    model, loss_of = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for (x,) in batches(loader):
        between()
        if zero == "first":
            optimizer.zero_grad()
        loss = loss_of(x)
        if zero == "last":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("zero", ["first", "last"])
@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("make", [own_call, called_forward, method])
def test_what_the_loss_was_computed_from_is_computing_and_what_came_before_is_not(
    make: Callable[[], Any], loader: bool, zero: str, profiling: Profiling, layers: Layers
) -> None:
    expected = train(make, loader, lambda: time.sleep(SLEEP_S), zero)
    with profiling() as profile:
        losses = train(make, loader, lambda: time.sleep(SLEEP_S), zero)
    assert losses == expected
    assert len(profile.rows) == STEPS
    assert last(profile.rows, "compute") == pytest.approx(LAYERS_S, rel=0.01)
    assert last(profile.rows, "other") == pytest.approx(SLEEP_S, rel=0.01)
    forward_s = last(profile.rows[-8:], "compute_forward")
    assert forward_s == pytest.approx(LAYERS_S / 3, rel=0.01)


def test_batches_that_the_loop_computes_itself_are_not_computing(profiling: Profiling, layers: Layers) -> None:
    """Operators that autograd does not record belong to no loss."""
    matrix = torch.randn(8, 8)

    def prepare() -> None:
        functional.linear(matrix, matrix)

    with profiling() as profile:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for (x,) in batches(loader=False):
            prepare()
            model(x).sum().backward()
            optimizer.step()
        assert not profile.session.recorder.loop.early
    assert last(profile.rows, "other") == pytest.approx(0.001)
