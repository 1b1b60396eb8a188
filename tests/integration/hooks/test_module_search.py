"""The search for outermost modules: every model of a process is found, and the class of modules is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ddlprof.collect.hooks import modules
from ddlprof.model.records import Flag
from scripts.lab.virtual_clock import VirtualClock
from tests.integration.hooks.conftest import Profiling

STEPS, STEP_S = 200, 0.02
FEW = 16
"""The changes of `nn.Module.__call__` that a run may make: each throws away what Python has cached of all modules."""
X = torch.ones(2, 4)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x)
        return result


class Container(nn.Module):
    """A module that is never called itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def act(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


class Changes:
    """Counts how often the call of modules is found to have changed."""

    def __init__(self) -> None:
        self.count, self._last = 0, nn.Module.__call__

    def look(self) -> None:
        now = nn.Module.__call__
        self.count += now is not self._last
        self._last = now


@pytest.fixture(autouse=True)
def without_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "used_dynamo", lambda: False)  # by another test


def _wrapper() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Wrapper(nn.Linear(4, 4))
    return model, model


def _container() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Container(nn.Linear(4, 4))
    return model, model.act


@pytest.mark.parametrize("make", [_wrapper, _container])
def test_evaluating_in_each_step_changes_no_class_in_each_step(
    make: Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor]]], profiling: Profiling, clock: VirtualClock
) -> None:
    model, call = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiling() as profile:
        changes = Changes()
        for _ in range(STEPS):
            model.eval()
            changes.look()
            with torch.no_grad():
                call(X)
            model.train()
            optimizer.zero_grad()
            call(X).square().mean().backward()
            optimizer.step()
            changes.look()
            clock.sleep(STEP_S)
    assert len(profile.rows) == STEPS
    assert changes.count <= FEW


def test_all_models_in_turn_have_a_forward_and_change_no_class_each(profiling: Profiling, clock: VirtualClock) -> None:
    models, steps = 25, 8
    with profiling() as profile:
        changes = Changes()
        for _ in range(models):
            model = nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps):
                loss = model(X).square().mean()
                clock.sleep(0.001)
                loss.backward()
                optimizer.step()
                clock.sleep(STEP_S)
                changes.look()
    assert len(profile.rows) == models * steps
    assert [row.step for row in profile.rows if row.compute_forward_ns is None] == []
    assert changes.count <= FEW


def test_a_model_that_only_evaluations_call_is_found_after_many_updates(
    profiling: Profiling, clock: VirtualClock
) -> None:
    model = Wrapper(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiling() as profile:
        for step in range(1, 65):
            model(X).square().mean().backward()
            optimizer.step()
            clock.sleep(STEP_S)
            if step == 50:
                model.eval()
                with torch.no_grad():
                    model.module(X).sum().item()
                model.train()
    assert [row.step for row in profile.rows if row.flags & Flag.EVALUATION] == [50]
