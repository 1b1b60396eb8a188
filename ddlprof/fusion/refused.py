"""What of a model would be lost where its copies train as one: hooks on gradients, and forwards that cannot be copied.

A gradient of models that train as one is that of all of them, which no hook of one model can be called with.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.overrides import TorchFunctionMode

from ddlprof.base.errors import UserError

_REGISTERS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)


def check_model(model: nn.Module) -> None:
    """Raises UserError for a model that its stacked copies would not stand for."""
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


def check_forward(function: Callable[..., object], model: nn.Module, batch: tuple[Any, ...]) -> None:
    """Calls `function(model, *batch)`. Raises UserError if that registers hooks on gradients.

    Where models train as one, code that asks tensors whether they need gradients is told no, and registers none.
    """
    with _Refuses(), torch.enable_grad(), torch.random.fork_rng():
        function(model, *batch)


class _Refuses(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REGISTERS:
            raise _hooked("a tensor of forward")
        return func(*args, **(kwargs or {}))


def _hooked(what: str) -> UserError:
    return UserError(f"{what} has hooks on its gradient, which are of one model")
