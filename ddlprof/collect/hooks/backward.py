"""`torch.autograd.backward`, which `Tensor.backward` calls: one call is one micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks import Uninstall, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


def install(
    recorder: Recorder, before: Callable[[], None], after: Callable[[], None], after_each: Callable[[], None]
) -> Uninstall:
    """`before()` and `after()` are called around each outermost backward of the training thread.

    `after_each()` also after one inside another, as reentrant checkpointing runs them.
    """
    import torch

    original = torch.autograd.backward
    nested = False

    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal nested
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if nested:
            try:
                return original(*args, **kwargs)
            finally:
                after_each()
        if not recorder.emit(Kind.BACKWARD_BEGIN):
            return original(*args, **kwargs)
        nested = True
        before()
        try:
            return original(*args, **kwargs)
        finally:
            nested = False
            after_each()
            after()
            recorder.emit(Kind.BACKWARD_END)

    backward.__doc__ = original.__doc__
    return replace(torch.autograd, "backward", backward)
