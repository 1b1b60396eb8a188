"""Functions of torch's that are ours for the time being: still found by their names, with their signatures."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

from ddlprof.collect.hooks import backward, checkpoint, process_group
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder


def context() -> HookContext:
    return hook_context(torch, Recorder())


FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[], Uninstall]]] = {
    "save": (lambda: torch.save, lambda: checkpoint.install(context())),
    "backward": (
        lambda: torch.autograd.backward,
        lambda: backward.install(context()),
    ),
    "default group": (
        lambda: dist.distributed_c10d._update_default_pg,
        lambda: process_group.follow(lambda: None),
    ),
    "GradScaler.step": (lambda: GradScaler.step, lambda: context().steps.install()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_replaced_function_looks_like_the_original(name: str) -> None:
    get, install = FUNCTIONS[name]
    original = get()
    uninstall = install()
    try:
        ours = get()
        assert ours is not original
        assert inspect.signature(ours) == inspect.signature(original)
        assert (ours.__module__, ours.__qualname__) == (original.__module__, original.__qualname__)
        assert pickle.loads(pickle.dumps(ours)) is ours  # a script may send it to a process of its own
    finally:
        uninstall()
    assert get() is original


@pytest.mark.parametrize("arguments", [{}, {"tensors": None, "no": 1}])
def test_errors_in_a_call_are_torchs_own(arguments: Any) -> None:
    with pytest.raises(TypeError) as plain:
        torch.autograd.backward(**arguments)
    uninstall = backward.install(context())
    try:
        with pytest.raises(TypeError) as profiled:
            torch.autograd.backward(**arguments)
    finally:
        uninstall()
    assert str(profiled.value) == str(plain.value)


class Unhashable(torch.optim.SGD):
    """Neither can be looked up, nor, as it turns out, counted."""

    __hash__ = None  # type: ignore[assignment]


def test_an_error_of_ours_in_a_step_reaches_nobody() -> None:
    weight = torch.ones(2, requires_grad=True)
    uninstall = context().steps.install()
    try:
        sgd: Any = Unhashable([weight], lr=0.5)
        for _ in range(2):
            weight.sum().backward()
            sgd.step()
            sgd.zero_grad()
    finally:
        uninstall()
    assert torch.equal(weight.detach(), torch.zeros(2))
