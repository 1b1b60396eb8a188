"""Gradients of parameters that nothing updates, by the graph of a step and by what becomes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlprof.operators.needless import NeedlessGradients, _state


class Training:
    """A backbone and a head, of which some are trained."""

    def __init__(self, *, frozen: bool = False, all_updated: bool = False) -> None:
        self.backbone = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(4))).requires_grad_(not frozen)
        self.head = nn.Linear(32, 32, bias=False)
        both = [*self.backbone.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(both if all_updated else self.head.parameters(), 0.1)
        self.found = NeedlessGradients()

    def steps(self, number: int = 20) -> float | None:
        for step in range(number):
            loss = self.head(self.backbone(torch.ones(2, 32))).sum()
            if step == 1:
                self.found.read(loss)
            loss.backward()
            if step < 2:
                self.found.update(self.optimizer)
            self.optimizer.step()
            self.found.look(step + 1)
        return self.found.share


def test_all_that_is_computed_for_a_backbone_that_is_not_trained_is_counted() -> None:
    training = Training()
    # forward of 5 layers; backward: 4 + 3 products for the backbone (its input needs none), 2 for the head, of which
    # that for the backbone is needless, too.
    assert training.steps() == pytest.approx((4 + 3 + 1) / (5 + 4 + 3 + 2))
    assert training.found.parameters == 4


def test_a_frozen_backbone_and_one_that_is_trained_cost_nothing_needless() -> None:
    assert Training(frozen=True).steps() == 0
    assert Training(all_updated=True).steps() == 0


def test_parameters_that_something_else_changes_are_not_told() -> None:
    training = Training()
    training.steps(10)
    with torch.no_grad():
        next(training.backbone.parameters()).data.mul_(0.5)  # no version of the parameter changes
    assert training.steps(20) is None


def test_a_few_updates_do_not_prove_that_nothing_updates_them() -> None:
    assert Training().steps(8) is None


def test_a_graph_that_is_too_large_is_not_read() -> None:
    found = NeedlessGradients()
    loss = torch.ones(2, requires_grad=True)
    for _ in range(20_000):
        loss = loss + 1
    found.update(torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1))
    found.read(loss.sum())
    found.look(20)
    assert found.share is None


def test_memory_that_is_given_back_between_passes_is_not_read() -> None:
    """As by FSDP: to read it would end the process."""
    parameter = nn.Parameter(torch.ones(4))
    held = _state(parameter)
    parameter.untyped_storage().resize_(0)
    assert len(_state(parameter)) == 2 < len(held)


def test_parameters_of_another_class_are_left_to_their_optimizers() -> None:
    class Sharded(nn.Parameter):
        pass

    training = Training()
    first = training.backbone[0]
    assert isinstance(first, nn.Linear)
    first.weight = Sharded(first.weight.detach())
    training.steps()
    assert training.found.parameters == 3
