from __future__ import annotations

import torch
from torch import nn

from ddlprof.collect.hooks.modules import NoGradModules
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
