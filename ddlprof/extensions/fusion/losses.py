"""The losses of all models at once, from the outputs of all and targets that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from ddlprof.extensions.fusion.mapping import HALVES, mappable

_IGNORED = -100
"""The target that cross_entropy ignores."""


def _cross_entropy(outputs: Tensor, target: Tensor) -> Tensor | None:
    """The cross-entropy of outputs (B, N, C, ...) against shared classes (N, ...); None for other shapes."""
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


def of_all(loss: Callable[..., Any], outputs: Any, target: Any) -> Any:
    """The loss of each model from the outputs of all models."""
    known = _OF_ALL.get(loss)
    if known is not None and isinstance(outputs, Tensor) and isinstance(target, Tensor):
        if torch.is_autocast_enabled(outputs.device.type):  # which computes these losses in single precision
            outputs, target = (each.float() if each.dtype in HALVES else each for each in (outputs, target))
        found = known(outputs, target)
        if found is not None:
            return found
    with mappable(target.device if isinstance(target, Tensor) else torch.device("cpu")):
        return vmap(loss, in_dims=(0, None), randomness="different")(outputs, target)
