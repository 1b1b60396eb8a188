"""Private names of torch for `ddlprof features`, which traces models that are not trained; not part of a training."""

from __future__ import annotations

from typing import Any

from ddlprof.torch_private.names import PrivateName

_COUNT = "ddlprof features counts no floating point operations"
_DISPATCH = "torch.utils._python_dispatch"

NAMES = (
    PrivateName(f"{_DISPATCH}:TorchDispatchMode", "sees each operator", _COUNT),
    PrivateName("torch:_C._disabled_torch_dispatch_impl", "tells tensor classes that unpack themselves", _COUNT),
    PrivateName("torch:_ops.HigherOrderOperator", "tells operators whose inside is not seen", _COUNT),
    PrivateName(
        "torch.ops:OpOverload()._overloadpacket",
        "finds the formula of an operator",
        _COUNT,
        example=lambda torch: torch.ops.aten.add.Tensor,
    ),
    PrivateName(
        "torch.optim:Optimizer._cuda_graph_capture_health_check",
        "asks no GPU while the update is traced",
        "ddlprof features opens a context on a GPU that it does not need",
    ),
    PrivateName("torch.utils._pytree:tree_leaves", "finds tensors in what a model returns", _COUNT),
)


def mode_class() -> Any:
    """The class that dispatch modes are derived from. Raises ImportError in a version of torch without it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def unpacks_itself(kind: Any, torch: Any) -> bool:
    """Whether a class of tensors handles its operators by itself."""
    return bool(kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl)


def asks_no_device(optimizer: Any) -> Any:
    """The optimizer, which asks no GPU any more whether it captures a graph. Torch would open a context for that."""
    for name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
        if hasattr(optimizer, name):  # torch had the first before the second
            setattr(optimizer, name, lambda: None)
    return optimizer


def packet(function: Any) -> Any:
    """The operator that one of its overloads belongs to."""
    return getattr(function, "_overloadpacket", function)


def is_higher_order(function: Any, torch: Any) -> bool:
    """Whether an operator's inside is not seen."""
    return isinstance(function, torch._ops.HigherOrderOperator)


def leaves(value: Any) -> Any:
    """The leaves of the containers in `value`, as a list."""
    from torch.utils._pytree import tree_leaves

    return tree_leaves(value)
