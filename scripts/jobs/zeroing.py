"""Loops of `idioms` in which zeroing gradients, or freeing them, takes a good part of the step."""

from __future__ import annotations

import time

import torch
from torch import nn
from truth import PAUSE_S, Truth, awaited, batches, burn, net, sgd

_LARGE = 8_000_000

Models = list[nn.Module]


class WithTable(nn.Module):
    """A small net and a large table that is learned beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.table = nn.Parameter(torch.zeros(_LARGE))
        self.table.grad = torch.ones(_LARGE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The net alone: the table has its gradients from elsewhere."""
        output: torch.Tensor = self.net(x)
        return output


def zeroed_first(truth: Truth, steps: int) -> Models:
    """Gradients are zeroed in the first line of the step, by the model; then the loop computes outside of torch."""
    model = WithTable()
    optimizer = sgd(model.net)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            model.zero_grad(set_to_none=False)
        burn()
        with truth("compute"):
            model(x).square().mean().backward()
            optimizer.step()
        truth.step()
    return [model]


def zeroed_before_backward(truth: Truth, steps: int) -> Models:
    """Between forward and backward, by the optimizer, among pauses of the loop."""
    model = WithTable()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            loss = model(x).square().mean()
        burn()
        with truth("compute"):
            optimizer.zero_grad(set_to_none=False)
        time.sleep(PAUSE_S)
        with truth("compute"):
            loss.backward()
            optimizer.step()
        truth.step()
    return [model]


def freed_after_update(truth: Truth, steps: int) -> Models:
    """Behind the update, which has ended the step before."""
    model = WithTable()
    optimizer = torch.optim.Adam(model.net.parameters(), fused=True)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            (model(x).square().mean() + model.table.sum()).backward()
            optimizer.step()
        truth.step()
        burn()
        with truth("compute"):
            model.zero_grad()
    return [model]


ZEROING = (zeroed_first, zeroed_before_backward, freed_after_update)
