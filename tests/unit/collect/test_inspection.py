"""Which losses begin before any forward that a hook sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.collect.inspection import ModelInspection
from ddlprof.torch_private.engine import recorded_operations
from tests.unit.collect.cores import CORES

X = torch.ones(2, 4)


class Loop:
    """A loop whose modules, backwards and updates are looked at, as the hooks do it."""

    def __init__(self) -> None:
        self.watch = CORES[0].loop(Mock(), lambda: 0)
        self.inspection = ModelInspection(Mock(), Mock(), self.watch, recorded_operations(torch), Mock())
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def call(self, module: nn.Module, x: Tensor) -> Tensor:
        self.inspection.forward(module, [x])
        result: Tensor = module(x)
        return result

    def steps(self, loss_of: Callable[[Any], Tensor]) -> bool:
        for _ in range(3):
            loss = loss_of(self)
            self.inspection.backward(loss, False, False)
            loss.backward()
            self.inspection.update(torch.optim.SGD(self.first.parameters()))
        return bool(self.watch.early)


def plain(loop: Loop) -> Tensor:
    return loop.call(loop.first, X).sum()


def two_modules(loop: Loop) -> Tensor:
    return loop.call(loop.second, loop.call(loop.first, X).relu()).sum()


def after_a_metric(loop: Loop) -> Tensor:
    loop.first.weight.norm()  # autograd records it, and no loss is computed from it
    return plain(loop)


def raw(loop: Loop) -> Tensor:
    return functional.linear(X, loop.first.weight).sum()


def raw_first(loop: Loop) -> Tensor:
    return loop.call(loop.second, functional.linear(X, loop.first.weight)).sum()


@pytest.mark.parametrize(
    ("loss_of", "early"),
    [(plain, False), (two_modules, False), (after_a_metric, False), (raw, True), (raw_first, True)],
)
def test_a_loss_begins_early_that_is_computed_from_what_no_module_did(
    loss_of: Callable[[Any], Tensor], early: bool
) -> None:
    assert Loop().steps(loss_of) == early
