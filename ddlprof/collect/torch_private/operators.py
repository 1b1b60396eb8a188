"""What `ddlprof features` needs to count the operations of a model that nobody trains; not part of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ddlprof.collect.torch_private.names import PrivateName

_COUNT = "ddlprof features counts no floating point operations"
_DISPATCH = "torch.utils._python_dispatch"
_OTHER = "ddlprof features does not count the operations of that attention kernel"
_ATTENTION = "_scaled_dot_product_flash_attention"

NAMES = (
    PrivateName(f"{_DISPATCH}:TorchDispatchMode", "sees each operator", _COUNT),
    PrivateName(f"{_DISPATCH}:_get_current_dispatch_mode_stack", "keeps out of other modes' way", _COUNT),
    PrivateName(f"{_DISPATCH}:_push_mode", "begins to count", _COUNT),
    PrivateName(f"{_DISPATCH}:_pop_mode", "ends counting", _COUNT),
    PrivateName("torch:_C._disabled_torch_dispatch_impl", "tells tensor classes that unpack themselves", _COUNT),
    PrivateName("torch:_ops.HigherOrderOperator", "tells operators whose inside is not seen", _COUNT),
    PrivateName(
        "torch.ops:OpOverload()._overloadpacket",
        "finds the formula of an operator",
        _COUNT,
        example=lambda torch: torch.ops.aten.add.Tensor,
    ),
    PrivateName("torch.utils._pytree:tree_leaves", "finds tensors in what a model returns", _COUNT),
    *(
        PrivateName(f"torch:ops.aten.{name}", "counts attention", _OTHER)
        for name in (_ATTENTION, f"{_ATTENTION}_for_cpu")
    ),
    PrivateName("torch:ops.aten._scaled_dot_product_fused_attention_overrideable", "counts attention", _OTHER, "2.7"),
)


class Modes(NamedTuple):
    """The dispatch modes of the current thread."""

    base: Any
    """The class that all are derived from."""
    stack: Callable[[], Any]
    push: Callable[[Any], None]
    pop: Callable[[], Any]


def modes() -> Modes:
    """Raises ImportError in a version of torch that lacks one of them."""
    from torch.utils._python_dispatch import (
        TorchDispatchMode,
        _get_current_dispatch_mode_stack,
        _pop_mode,
        _push_mode,
    )

    return Modes(TorchDispatchMode, _get_current_dispatch_mode_stack, _push_mode, _pop_mode)


def unpacks_itself(kind: Any, torch: Any) -> bool:
    """Whether a class of tensors handles its operators by itself."""
    return bool(kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl)


def packet(function: Any) -> Any:
    """The operator that one of its overloads belongs to."""
    return getattr(function, "_overloadpacket", function)


def is_higher_order(function: Any, torch: Any) -> bool:
    """Whether an operator's inside is not seen."""
    return isinstance(function, torch._ops.HigherOrderOperator)


def attention_kernels(aten: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of operators, forward and backward: the flash kernel, and one that takes the same arguments but that torch
    has no formula for; None in place of what this torch has not."""
    for name in (f"{_ATTENTION}_for_cpu", "_scaled_dot_product_fused_attention_overrideable"):
        for suffix in ("", "_backward"):
            yield getattr(aten, _ATTENTION + suffix, None), getattr(aten, name + suffix, None)


def leaves(value: Any) -> Any:
    """What is in the containers of `value`."""
    from torch.utils._pytree import tree_leaves

    return tree_leaves(value)
