"""Whether trials that train as one compute in their first steps what each computes by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddlprof.extensions.fusion.mapping import HALVES

FIRST_STEPS = 3
_GRADIENT, _LOW_GRADIENT = 0.05, 0.25
"""The largest difference as a share of a parameter's gradient; the second where numbers have 16 bits, with which a few
samples may fall on the other side of a ReLU."""
_NOTHING = 0.005
"""Gradients below this share of all gradients together may be only rounding, such as those of a bias before a
normalisation."""
_LOSS, _LOW_LOSS = 1e-3, 3e-2
"""The largest difference of a loss as a share of it; the second where numbers have 16 bits."""
_EXPLODED = 10.0
"""A loss that has become so many times as large is on its way to diverge, where rounding grows as it does."""

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class FirstSteps:
    """What one trial computed in its first steps."""

    losses: list[float]
    gradients: list[Gradients]
    """By the name of the parameter: those of the first step, and of the last one."""


def gradients_of(model: nn.Module) -> Gradients:
    """The gradients of the last step by the name of the parameter, as copies on the host."""
    return {name: each.grad.detach().cpu() for name, each in model.named_parameters() if each.grad is not None}


def difference(one: FirstSteps, alone: FirstSteps, is_low: bool) -> str:
    """How the first steps of a trial among others differ from those by itself, by more than rounding.

    Empty if they do not. What is not finite is not compared, nor what follows a loss that grows without end.
    """
    is_low = is_low or any(each.dtype in HALVES for each in alone.gradients[0].values())
    share = _LOW_GRADIENT if is_low else _GRADIENT
    for step, (loss, own) in enumerate(zip(one.losses, alone.losses, strict=True)):
        if not math.isfinite(loss - own) or abs(own) > _EXPLODED * abs(alone.losses[0]) + _EXPLODED:
            return ""
        if step == 0 and (name := _other(one.gradients[0], alone.gradients[0], share)):
            return f"the gradient of {name} is not that of a model by itself"
        if abs(loss - own) > (_LOW_LOSS if is_low else _LOSS) * max(abs(own), abs(alone.losses[0])):
            return f"the loss of step {step + 1} is {loss:.4g}, and {own:.4g} by itself"
    if name := _other(one.gradients[-1], alone.gradients[-1], share):
        return f"the gradient of {name} is not that of a model by itself in step {len(alone.losses)}"
    return ""


def largest_difference(one: FirstSteps, alone: FirstSteps) -> float:
    """The largest difference of losses, as a share of the loss."""
    pairs = zip(one.losses, alone.losses, strict=True)
    shares = [abs(loss - own) / max(abs(own), 1e-30) for loss, own in pairs if math.isfinite(loss - own)]
    return max(shares, default=0.0)


def _other(ones: Gradients, others: Gradients, share: float) -> str | None:
    """The name of a parameter whose gradients differ by more than rounding."""
    ones, others = ({name: each.double() for name, each in given.items()} for given in (ones, others))
    if not others:
        return next(iter(ones), None)
    every = torch.stack([each.norm() for each in others.values()]).norm()
    for name in {**ones, **others}:
        one, other = (each.get(name, torch.zeros((), dtype=torch.double)) for each in (ones, others))
        if bool((one - other).norm() > share * other.norm() + _NOTHING * every):
            return name
    return None
