"""What `ddlprof features` needs to run a model on tensors without data; not part of a training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ddlprof.torch_private.names import PrivateName

_LOST = "ddlprof features cannot tell the operators of a model"
_POLICY = "ddlprof features takes autocast for that of the CPU"

AUTOCAST = "AutocastCPU"
"""The key under which torch keeps what autocast does to operators on the CPU."""

NAMES = (
    PrivateName("torch._subclasses.fake_tensor:FakeTensorMode", "runs a model without its data", _LOST),
    PrivateName("torch._subclasses.fake_tensor:FakeTensor", "tells tensors without data", _LOST),
    PrivateName("torch:_C._ExcludeDispatchKeyGuard", "leaves autocast once it was done", _POLICY),
    PrivateName("torch:_C.DispatchKeySet", "leaves autocast once it was done", _POLICY),
    PrivateName("torch:_C.DispatchKey.AutocastCPU", "leaves autocast once it was done", _POLICY),
    PrivateName("torch:_C._dispatch_has_kernel_for_dispatch_key", "keeps what autocast does already", _POLICY),
    PrivateName("torch:ops.aten._scaled_dot_product_attention_math", "attention without a fused kernel", _LOST),
)


def fake_mode() -> Any:
    """The mode in which tensors have no data; real ones may be mixed in. Raises ImportError in a torch without it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
    # The mode's weak references to its own tensors keep `module.to` from exchanging a parameter; none need them.
    mode.fake_tensor_converter.set_tensor_memo = lambda tensor, fake: None
    return mode


def formats_itself(function: Any, torch: Any) -> bool:
    """Whether a function makes the text of a tensor, as in an f-string."""
    return function is torch.Tensor.__format__


def fake_mode_of(model: Any) -> Any:
    """The mode that the tensors of a model belong to; a new one where they have data."""
    modes = (getattr(tensor, "fake_mode", None) for tensor in [*model.parameters(), *model.buffers()])
    return next((mode for mode in modes if mode is not None), None) or fake_mode()


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def outside_autocast(torch: Any) -> AbstractContextManager[Any]:
    """A context without the CPU's autocast, for operators that autocast itself calls."""
    found: AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )
    return found


def has_autocast(torch: Any, operator: str) -> bool:
    """Whether the CPU's autocast treats an operator, `aten::exp` for instance."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, AUTOCAST))


def attention_in_parts(torch: Any) -> Callable[..., Any]:
    """Scaled dot product attention as its single operators; returns the result and the weights."""
    found: Callable[..., Any] = torch.ops.aten._scaled_dot_product_attention_math
    return found


def is_fake_type(kind: Any) -> bool:
    """Whether a class is that of tensors without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(kind, type) and issubclass(kind, FakeTensor)
