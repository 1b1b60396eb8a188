"""Finds out whether models can be trained as one.

Names the line of the user's code that prevents it, and checks that gradients of fused models equal those of each model
by itself.
"""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.hyperparameters import Values
from ddlprof.extensions.fusion.task import Task
from ddlprof.extensions.fusion.training import FusedTraining, TrainingMode

_NOT_THE_USERS = (
    os.path.join(os.path.dirname(torch.__file__), ""),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
)
_REASONS = (
    (
        r"data-dependent control flow|call(?:ing)? \.item\(\)",
        "a value is taken out of a tensor (.item(), float(), a branch) that differs between models",
    ),
    (
        r"dynamic shape|output.*shape.*depend|aten::(nonzero|unique|masked_select)",
        "the shape of a result depends on values",
    ),
    (r"vmap: inplace|inplace.*unmodified", "a tensor that all models share is written in place"),
    (r"Batching rule not implemented", "the operator has no rule for many models"),
)
_FALLBACK = re.compile(r"batching rule for (\S+?)\.? ")


class Unfusible(Exception):
    """Models cannot be trained as one. The message is one line that names the line of the user's code."""


def find_unfusible(step: Callable[[], object]) -> list[str]:
    """The operators that run once for each model, from one step of fused models.

    Raises Unfusible with line and reason.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            step()
        except UserError as error:
            raise Unfusible(str(error)) from None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            reason = next((text for pattern, text in _REASONS if re.search(pattern, message, re.I)), None)
            said = f"{type(error).__name__}: {message[:160]}"
            raise Unfusible(f"{_line(error)}{f'{reason} ({said})' if reason else said}") from None
    operators = {found[1] for each in caught if (found := _FALLBACK.search(str(each.message)))}
    return [f"{name} has no rule for many models: it runs once for each" for name in sorted(operators)]


def _line(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_NOT_THE_USERS, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    name = os.path.relpath(last.filename) if last.filename.startswith(os.getcwd()) else last.filename
    return f"{name}:{last.lineno}: `{last.line}`: " if last.line else f"{name}:{last.lineno}: "


@contextmanager
def without_warnings() -> Iterator[None]:
    """A context without torch's warnings about operators that vmap cannot map, which a note reports once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


_TOLERANCE = 0.05
"""The largest difference as a share of a parameter's gradient. Rounding stays below it, even with 16 bits."""
_NOTHING = 0.005
"""Gradients below this share of all gradients together may be only rounding, such as those of a bias before a
normalisation."""

Gradients = dict[str, Tensor]


def check_same(task: Task, trials: Sequence[Values], batch: Any) -> None:
    """Raises UserError if models of these trials have other gradients as one than each by itself.

    Models whose forward draws random numbers are compared in evaluation mode. They are not compared if it draws some
    there, too, or if they do not train in that mode.
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
    """The name of a parameter whose gradients differ; None if there is none.

    Raises _Random, and the errors of a step.
    """
    alone = [_alone(task, values, batch, is_training) for values in trials]
    if _other(alone[0], _alone(task, trials[0], batch, is_training, draws=1)) is not None:
        raise _Random
    together = _together(task, trials, batch, is_training)
    return next((name for pair in zip(alone, together, strict=True) if (name := _other(*pair)) is not None), None)


def _alone(task: Task, values: Values, batch: Any, is_training: bool, draws: int = 0) -> Gradients:
    """Gradients by the name of the parameter. `draws`: the seed of random numbers in forward."""
    model = task.model(values).train(is_training)
    torch.manual_seed(draws)
    task.loss_of(model, batch).backward()
    return _gradients(model)


def _together(task: Task, trials: Sequence[Values], batch: Any, is_training: bool) -> list[Gradients]:
    training = FusedTraining(task, trials, TrainingMode(traced=False))
    training.fused.train(is_training)
    training.gradients(batch)
    return [_gradients(model) for model in training.models()]


def _gradients(model: nn.Module) -> Gradients:
    return {name: each.grad.double() for name, each in model.named_parameters() if each.grad is not None}


def _other(ones: Gradients, others: Gradients) -> str | None:
    """The name of a parameter whose gradients differ by more than rounding.

    Gradients that are not finite are ignored.
    """
    every = torch.stack([each.norm() for each in ones.values()]).norm()
    for name in {**ones, **others}:
        one, other = (each.get(name, torch.zeros(())).to(every.device) for each in (ones, others))
        if bool((one - other).norm() > _TOLERANCE * one.norm() + _NOTHING * every):
            return name
    return None
