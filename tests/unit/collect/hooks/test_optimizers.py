"""Updates that nothing but their effect shows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ddlprof.collect.hooks.optimizers import UpdateWatch

MAKE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p),
}


def parameters(count: int = 3) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
    for p in made:
        p.grad = torch.ones(2)
    return made


def step(optimizer: Any) -> None:
    optimizer.step(lambda: torch.zeros(()))


@pytest.mark.parametrize("name", MAKE)
def test_each_update_is_found_once(name: str) -> None:
    optimizer, other = MAKE[name](parameters()), MAKE[name](parameters())
    for _ in range(3):
        watch = UpdateWatch([optimizer, other])
        assert watch.updated([optimizer, other]) == []
        step(optimizer)
        assert watch.updated([optimizer, other]) == [optimizer]
        assert watch.updated([optimizer, other]) == []
        step(other)
        watch.look(other)
        assert watch.updated([optimizer, other]) == []


def test_found_in_any_group_and_past_parameters_without_gradient() -> None:
    groups = [{"params": parameters(5)} for _ in range(20)]
    for group in groups[:-1]:
        for p in group["params"]:
            p.requires_grad_(False).grad = None
    optimizer = torch.optim.SGD(groups, lr=0.1)
    watch = UpdateWatch([optimizer])
    step(optimizer)
    assert watch.updated([optimizer]) == [optimizer]


def test_parameters_that_the_script_changes_are_no_update_of_an_optimizer_with_a_state() -> None:
    made = parameters()
    optimizer = torch.optim.Adam(made, lr=0.1)
    step(optimizer)
    watch = UpdateWatch([optimizer])
    with torch.no_grad():
        for p in made:
            p.clamp_(-0.5, 0.5)
    optimizer.zero_grad(set_to_none=False)
    assert watch.updated([optimizer]) == []


def test_an_optimizer_of_another_build_or_made_later_is_left_alone() -> None:
    class Own:
        def step(self) -> None: ...

    own, later = Own(), torch.optim.SGD(parameters(), lr=0.1)
    watch = UpdateWatch([own])
    step(later)
    assert watch.updated([own, later]) == []


def test_keeps_nothing_alive() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=0.1)
    watch, alive = UpdateWatch([optimizer]), weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None
    assert watch.updated([]) == []
