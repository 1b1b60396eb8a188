"""Hooks of optimizers that are taken back while torch calls them: the training goes on, and then they are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddlprof.collect.install import Hooking, Uninstall, removal, sweep

REGISTER = {"before": register_optimizer_step_pre_hook, "after": register_optimizer_step_post_hook}


def hooks() -> int:
    return len(torch_optimizer._global_optimizer_pre_hooks) + len(torch_optimizer._global_optimizer_post_hooks)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    sweep()
    assert hooks() == 0


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter])


def test_outside_of_steps_they_go_at_once(optimizer: torch.optim.Optimizer) -> None:
    calls: list[str] = []
    uninstall = removal(*(register(lambda *_, name=name: calls.append(name)) for name, register in REGISTER.items()))
    optimizer.step()
    uninstall()
    assert hooks() == 0
    optimizer.step()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("when", REGISTER)
def test_during_a_step_the_hooks_of_others_go_on(when: str, optimizer: torch.optim.Optimizer) -> None:
    ours, others = [], []

    def ends(*_: Any) -> None:
        ours.append(1)
        uninstall()

    uninstall = removal(REGISTER[when](ends), *(register(lambda *_: None) for register in REGISTER.values()))
    handle = REGISTER[when](lambda *_: others.append(1))
    for _ in range(3):
        optimizer.step()
    assert (len(ours), len(others)) == (1, 3)
    handle.remove()


class Notes:
    """Stands for the recorder."""

    active = True

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, source: str, message: str) -> None:
        self.said.append(source)


def test_a_hook_is_installed_once_until_all_are_removed() -> None:
    """As those of an accelerator that appears in the step in which the session pauses and goes on."""
    present, failures = list[str](), [1]

    def install(context: str) -> Uninstall:
        present.append(context)
        return lambda: present.remove(context)

    def fails_at_first(context: str) -> Uninstall:
        if failures:
            raise ValueError(failures.pop())
        return install(context)

    recorder = Notes()
    hooking = Hooking(recorder, lambda name: None)
    table = [("copies", install), ("streams", fails_at_first)]
    hooking.install(table, "a")
    assert (present, recorder.said) == (["a"], ["streams"])
    hooking.install(table, "b")
    hooking.install(table, "c")
    assert present == ["a", "b"]
    hooking.uninstall()
    assert (present, recorder.active) == ([], False)
    hooking.install(table, "d")
    assert present == ["d", "d"]
