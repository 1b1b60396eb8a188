"""Whether models that train as one are those that train by themselves: their gradients on one batch, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.fusion.sweep import Values
from ddlprof.fusion.task import Task
from ddlprof.fusion.training import Together

_TOLERANCE = 0.05
"""Of a parameter's gradient: rounding stays below, also that of 16 bits."""
_NOTHING = 0.005
"""Of all gradients together: what is smaller can be nothing but rounding, as of a bias before a normalisation."""

Gradients = dict[str, Tensor]


def check_same(task: Task, trials: Sequence[Values], batch: Any) -> None:
    """Raises UserError where the models of these trials get other gradients as one than each by itself.

    Forwards that draw random numbers are compared in evaluation mode, and not at all where they draw some there, too,
    or do not train in that mode.
    """
    name = None
    try:
        name = _differing(task, trials, batch, is_training=True)
    except _Random:
        with suppress(Exception):
            name = _differing(task, trials, batch, is_training=False)
    if name is not None:
        raise UserError(f"as one it is another model: the gradient of {name} is not that of a model by itself")


class _Random(Exception):
    """Forward is not the same each time."""


def _differing(task: Task, trials: Sequence[Values], batch: Any, is_training: bool) -> str | None:
    """A parameter with other gradients as one. Raises _Random, and what a step raises."""
    alone = [_alone(task, values, batch, is_training) for values in trials]
    if _other(alone[0], _alone(task, trials[0], batch, is_training, draws=1)) is not None:
        raise _Random
    together = _together(task, trials, batch, is_training)
    return next((name for pair in zip(alone, together, strict=True) if (name := _other(*pair)) is not None), None)


def _alone(task: Task, values: Values, batch: Any, is_training: bool, draws: int = 0) -> Gradients:
    """Gradients by name. `draws` is the seed of the random numbers that forward draws."""
    model = task.model(values).train(is_training)
    torch.manual_seed(draws)
    task.loss_of(model, batch).backward()
    return _gradients(model)


def _together(task: Task, trials: Sequence[Values], batch: Any, is_training: bool) -> list[Gradients]:
    training = Together(task, trials)
    training.fused.train(is_training)
    training.gradients(batch)
    return [_gradients(model) for model in training.models()]


def _gradients(model: nn.Module) -> Gradients:
    return {name: each.grad.double() for name, each in model.named_parameters() if each.grad is not None}


def _other(ones: Gradients, others: Gradients) -> str | None:
    """A parameter with gradients that differ by more than rounding. Those that are not finite tell nothing."""
    every = torch.stack([each.norm() for each in ones.values()]).norm()
    for name in {**ones, **others}:
        one, other = (each.get(name, torch.zeros(())).to(every.device) for each in (ones, others))
        if bool((one - other).norm() > _TOLERANCE * one.norm() + _NOTHING * every):
            return name
    return None
