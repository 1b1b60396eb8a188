"""Tensors' own methods are away in the first steps only, and hear everything as before."""

from __future__ import annotations

import torch
from torch import nn

from ddlprof.collect.recorder import FIRST_STEPS
from tests.integration.hooks.conftest import Profiling

METHODS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")


def test_tensors_have_their_own_methods_after_the_first_steps(profiling: Profiling) -> None:
    before = {name: vars(torch.Tensor).get(name) for name in METHODS}
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with profiling():
        for _ in range(FIRST_STEPS + 3):
            loss = net(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            assert loss.item() == float(loss) == loss.tolist()
            assert int(torch.ones(())) == [5, 1][torch.ones((), dtype=torch.long)] == 1
            assert bool(loss == loss)
            assert loss.numpy().shape == ()
        assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before
    assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before
