"""The losses noted: of which backward, how often, and that nothing of the training notices."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from ddlprof.collect.hooks import backward
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import VALUES_PER_STRIDE, Recorder, TrainingLoss
from ddlprof.model.events import Kind
from ddlprof.model.records import LossValue


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Of hooks on backward that are installed."""
    found = Recorder()
    uninstall = backward.install(hook_context(torch, found))
    yield found
    uninstall()


def weight() -> torch.Tensor:
    return torch.tensor([2.0, 3.0], requires_grad=True)


def update(recorder: Recorder) -> None:
    recorder.emit(Kind.OPTIMIZER_BEGIN)
    recorder.emit(Kind.OPTIMIZER_END)


def test_the_first_backward_of_an_update_is_noted(recorder: Recorder) -> None:
    for step in range(3):
        for factor in (1.0, 10.0):
            (weight().sum() * factor + step).backward()
        update(recorder)
    assert recorder.training_loss.take() == [LossValue(0, 5.0), LossValue(1, 6.0), LossValue(2, 7.0)]
    assert recorder.training_loss.take() == []


def test_what_is_no_single_number_of_the_host_is_left_alone(recorder: Recorder) -> None:
    w = weight()
    w.backward(torch.ones(2))
    update(recorder)
    torch.autograd.backward([w.sum(), w.prod()])
    update(recorder)
    w.sum().to(torch.bfloat16).backward()
    update(recorder)

    class Own(torch.Tensor):
        pass

    w.sum().as_subclass(Own).backward()
    assert recorder.training_loss.take() == []
    assert not recorder.drops.take()


def test_a_loss_is_noted_as_it_was_before_it_was_scaled(recorder: Recorder) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = weight().sum()
    scaled = scaler.scale(loss)
    scaled.backward()
    assert scaled.item() == 5120.0
    assert recorder.training_loss.take() == [LossValue(0, 5.0)]


def test_nothing_that_watches_operations_sees_a_reading(recorder: Recorder) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    loss = weight().sum()
    with Watch():
        recorder.training_loss.note(loss, 0)
    assert seen == []
    assert recorder.training_loss.take() == [LossValue(0, 5.0)]


def test_the_longer_a_run_the_rarer() -> None:
    values, loss = TrainingLoss(), torch.tensor(1.0)
    noted = 0
    for number in range(100_000):
        if number >= values.due:
            values.note(loss, number)
            noted += 1
    updates = [each.update for each in values.take()]
    assert noted == len(updates) < VALUES_PER_STRIDE * (math.log2(100_000 / VALUES_PER_STRIDE) + 1)
    assert updates[:VALUES_PER_STRIDE] == list(range(VALUES_PER_STRIDE))
    assert len([update for update in updates if update >= 50_000]) >= VALUES_PER_STRIDE / 2
