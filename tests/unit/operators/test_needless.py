"""Gradients that no optimizer uses, by the graphs of the first steps and by what becomes of them."""

from __future__ import annotations

import itertools

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
            if step < 4:
                self.found.backward(loss, step == 1)
            loss.backward()
            if step < 4:
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
    found.backward(loss.sum(), True)
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


class Adversaries:
    """A generator and a critic of three layers each that take turns."""

    def __init__(self, *, detached: bool = False, frozen: bool = False, to_none: bool = True) -> None:
        self.generator = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(3)))
        self.critic = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(3)))
        self.optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (self.critic, self.generator)]
        self.detached, self.frozen, self.to_none = detached, frozen, to_none
        self.found = NeedlessGradients()
        self.updates = 0

    def update(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=self.to_none)
        if self.updates < 4:
            self.found.backward(loss, self.updates in (1, 2))
        loss.backward()
        if self.updates < 4:
            self.found.update(optimizer)
        optimizer.step()
        self.updates += 1
        self.found.look(self.updates)

    def steps(self, number: int = 10) -> float | None:
        x = torch.ones(2, 32)
        for _ in range(number):
            self.critic.requires_grad_(True)
            fake = self.generator(x)
            self.update(self.optimizers[0], self.critic(fake.detach() if self.detached else fake).sum())
            self.critic.requires_grad_(not self.frozen)
            self.update(self.optimizers[1], self.critic(self.generator(x)).sum())
        return self.found.share


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_set_to_zero_before_their_optimizer_uses_them(to_none: bool) -> None:
    training = Adversaries(to_none=to_none)
    # Of each pass, 6 products of forward, and 11 of backward. That of the critic needs neither the gradients of the
    # generator nor those that lead to it; that of the generator none of the critic's weights.
    assert training.steps() == pytest.approx((6 + 3) / 34)
    assert (training.found.parameters, training.found.dropped) == (0, 6)


def test_what_is_detached_and_what_is_frozen_for_the_other_cost_nothing_needless() -> None:
    training = Adversaries(detached=True)
    assert training.steps() == pytest.approx(3 / 25)
    assert training.found.dropped == 3
    assert Adversaries(detached=True, frozen=True).steps() == 0


def test_gradients_that_are_added_up_for_a_later_update_are_used() -> None:
    training = Adversaries()
    for step in range(20):  # one loss for both, whose gradients are zeroed when both have used them
        loss = training.critic(training.generator(torch.ones(2, 32))).sum()
        for each in training.optimizers:
            each.zero_grad()
        if step < 2:
            training.found.backward(loss, True)
        loss.backward()
        for each in training.optimizers:
            if step < 2:
                training.found.update(each)
            each.step()
        training.found.look(2 * (step + 1))
    assert training.found.share == 0


def test_an_optimizer_of_which_the_first_steps_know_nothing_leaves_nothing_to_say() -> None:
    training = Adversaries()
    for n in range(20):
        rarely = n % 5 == 4
        loss = training.critic(training.generator(torch.ones(2, 32))).sum()
        training.update(training.optimizers[rarely], loss)
    assert training.found.share is None


def test_an_optimizer_that_begins_late_leaves_nothing_to_say() -> None:
    training = Training()
    assert training.steps(8) is None  # after so few updates it is not sure
    assert training.found.parameters == 4
    training.found.update(torch.optim.SGD(training.backbone.parameters(), 0.1))
    training.found.look(20)
    assert training.found.share is None


@pytest.mark.parametrize(("ms", "known"), [(1, True), (40, False)])
def test_a_graph_that_takes_long_is_not_read_to_its_end(ms: int, known: bool) -> None:
    now = itertools.count(0, ms * 1_000_000)
    found = NeedlessGradients(lambda: next(now))
    weight = nn.Parameter(torch.ones(2, 2))
    loss = weight @ weight
    for _ in range(1500):
        loss = loss + 1
    found.backward(loss.sum(), True)
    found.update(torch.optim.SGD([weight], 0.1))
    found.look(20)
    assert (found.share == 0) is known


@pytest.mark.parametrize("projected", [True, False])
def test_gradients_of_single_losses_that_are_taken(projected: bool) -> None:
    training = Training()
    features = training.backbone(torch.ones(2, 32))
    for weight in (1.0, 2.0):
        loss = (weight * training.head(features)).sum()
        training.found.backward(loss, True)
        loss.backward(retain_graph=True)
        if projected:  # PCGrad projects those of one loss onto those of another
            training.optimizer.zero_grad()
            training.backbone.zero_grad()
    assert training.found.taken is projected
