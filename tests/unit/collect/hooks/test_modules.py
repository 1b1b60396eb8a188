from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ddlprof.collect.hooks.modules import NoGradModules, OuterModules
from ddlprof.collect.steps.no_grad import Read


def test_a_module_is_trained_that_shares_parameters_with_one_that_is_called_with_gradients() -> None:
    frozen, inner, teacher = NoGradModules(), nn.Linear(4, 4), nn.Linear(4, 4)
    wrapper = nn.Sequential(nn.ReLU(), inner)
    before = frozen.called(inner, [torch.ones(2, 4)])
    assert not before.module.is_trained
    frozen.trains(wrapper)
    assert before.module.is_trained
    assert not frozen.called(teacher, [torch.ones(2, 4)]).module.is_trained


def test_calls_are_told_apart_by_mode_and_batch() -> None:
    frozen, module = NoGradModules(), nn.Linear(4, 4)
    training = frozen.called(module, [torch.ones(2, 4)])
    assert (training.training_mode, training.samples) == (True, 2)
    assert frozen.called(module, [torch.ones(2, 4)]) is training
    assert frozen.called(module, [torch.ones(3, 4)]).samples == 3
    module.eval()
    assert not frozen.called(module, [torch.ones(2, 4)]).training_mode
    assert len({id(frozen.called(module, [torch.ones(size, 4)])) for size in range(1, 200)}) < 100


def test_the_first_thing_read_before_the_next_forward_counts() -> None:
    frozen, module = NoGradModules(), nn.Linear(4, 4)
    calls = frozen.called(module, [torch.ones(2, 4)])
    frozen.reads(1, is_fraction=True)
    frozen.reads(0, is_fraction=True)
    assert calls.read is Read.VALUES
    other = frozen.called(module, [torch.ones(3, 4)])
    frozen.trains(module)
    frozen.reads(0, is_fraction=False)  # of the training forward
    assert other.read is None
    frozen.called(module, [torch.ones(3, 4)])
    frozen.reads(0, is_fraction=False)
    assert other.read is Read.COUNT


def test_one_forward_under_vmap_is_soon_forgotten() -> None:
    recorder: Any = SimpleNamespace(boundaries=100)
    payload: Any = SimpleNamespace()
    outer, module = OuterModules(torch, recorder, lambda *_: None), nn.Linear(4, 4)

    def forwards(number: int, mapped: bool = False) -> None:
        outer.is_mapped = lambda: mapped
        for _ in range(number):
            outer.look_closely(module, (torch.ones(2, 4),), {}, payload, grad=True)

    forwards(1)
    assert (payload.value, outer.is_settled) == (2, True)
    forwards(1, mapped=True)
    assert (payload.value, outer.is_settled) == (None, False)
    forwards(8)
    assert (payload.value, outer.is_settled) == (2, False)
    forwards(8)
    assert outer.is_settled
