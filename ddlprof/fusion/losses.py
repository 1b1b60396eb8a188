"""Losses of all models in a few operators, where the loss is one that averages over the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

_IGNORED = -100
"""The target that cross_entropy leaves out."""


def _cross_entropy(outputs: Tensor, target: Tensor) -> Tensor | None:
    """(B, N, C, ...) against classes (N, ...) that all models share."""
    if target.is_floating_point() or outputs.dim() < 3 or outputs.shape[1] != len(target):
        return None
    models = len(outputs)
    targets = target.expand(models, *target.shape).flatten(0, 1)
    each = functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="none", ignore_index=_IGNORED)
    return each.view(models, -1).sum(1) / (target != _IGNORED).sum()


def _mse_loss(outputs: Tensor, target: Tensor) -> Tensor | None:
    if outputs.shape[1:] != target.shape or outputs.dtype != target.dtype:
        return None
    return (outputs - target).square().flatten(1).mean(1)


_OF_ALL: dict[Callable[..., Any], Callable[[Tensor, Tensor], Tensor | None]] = {
    functional.cross_entropy: _cross_entropy,
    functional.mse_loss: _mse_loss,
}


def knows(loss: Callable[..., Any] | None) -> bool:
    """Whether outputs of all models may be enough for this loss."""
    return loss in _OF_ALL


def of_all(loss: Callable[..., Any] | None, outputs: Any, target: Any) -> Tensor | None:
    """The loss of each model, from outputs of all; None where that has to be mapped over the models."""
    if loss not in _OF_ALL or not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return None
    return _OF_ALL[loss](outputs, target)
