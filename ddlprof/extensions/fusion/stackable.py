"""Whether models can be stacked: models of one shape, without hooks on gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.overrides import TorchFunctionMode

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.random_state import draws_undone


def check_alike(models: Sequence[nn.Module]) -> None:
    """Raises UserError unless the models can be stacked."""
    if not models:
        raise UserError("no models to fuse")
    if not any(each.requires_grad for each in models[0].parameters()):
        raise UserError("the model has nothing to train")
    kinds = [_shapes(model) for model in models]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            differ = sorted(name for name in {*kind, *kinds[0]} if kind.get(name) != kinds[0].get(name))
            raise UserError(f"models of different shapes cannot be fused: model {number} differs in {differ[0]}")


def _shapes(model: nn.Module) -> Mapping[str, object]:
    tensors = tensors_of(model).items()
    return {name: (tuple(each.shape), each.dtype, each.device, each.requires_grad) for name, each in tensors}


_REGISTERS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)


def check_model(model: nn.Module) -> None:
    """Raises UserError for a model with hooks on gradients, or with a forward that cannot be copied.

    The gradients of models that train as one belong to all of them, so hooks of one model could not be called.
    """
    for name, module in model.named_modules():
        if _has_hooks(module):
            raise _hooked(f"module {name or type(module).__name__}")
        own = vars(module).get("forward")
        if isinstance(own, FunctionType) and own.__closure__ is not None:
            raise UserError(
                f"the forward of module {name or type(module).__name__} was set to a function that may refer to this"
                " one model: set a method in its place (types.MethodType)"
            )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise _hooked(f"parameter {name}")


def _has_hooks(module: nn.Module) -> bool:
    own = (module._backward_hooks, module._backward_pre_hooks)
    return any(own) or bool(of_all_modules._global_backward_hooks or of_all_modules._global_backward_pre_hooks)


def check_forward(function: Callable[..., object], model: nn.Module, batch: tuple[Any, ...]) -> set[str]:
    """Calls `function(model, *batch)`. Returns the names of buffers and parameters that it changed.

    Raises UserError if it registers hooks on gradients: while models train as one, their tensors say that they need no
    gradients, so such code would register no hooks.
    """
    device = next(model.parameters()).device
    before = {name: each.detach().clone() for name, each in tensors_of(model).items()}
    with _Refuses(), torch.enable_grad(), draws_undone(device):
        function(model, *batch)
    after = tensors_of(model)
    return {name for name, each in before.items() if name not in after or not _same(each, after[name])}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def alike_in(models: Sequence[nn.Module]) -> set[str]:
    """The names of buffers and frozen parameters that are equal in all models."""
    first, *others = (tensors_of(model) for model in models)
    return {
        name
        for name, each in first.items()
        if not each.requires_grad and all(_same(each, other[name]) for other in others)
    }


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


class _Refuses(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REGISTERS:
            raise _hooked("a tensor of forward")
        return func(*args, **(kwargs or {}))


def _hooked(what: str) -> UserError:
    return UserError(f"{what} has hooks on its gradient, which are of one model")
