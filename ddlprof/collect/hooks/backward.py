"""`torch.autograd.backward`, which `Tensor.backward` calls: one call is one micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks import Uninstall, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


def install(recorder: Recorder, before: Callable[[Any, bool], None], after_each: Callable[[], None]) -> Uninstall:
    """`before(roots, nested)` is called before, `after_each()` after each outermost backward of the training thread.

    Also around one inside another, as reentrant checkpointing runs them.
    """
    import torch

    original = torch.autograd.backward
    nested = False

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        nonlocal nested
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        outermost = not nested
        if outermost and not recorder.emit(Kind.BACKWARD_BEGIN):
            return original(*args, **kwargs)
        nested = True
        try:
            before(args[0] if args else kwargs.get("tensors"), not outermost)
            return original(*args, **kwargs)
        finally:
            nested = not outermost
            after_each()
            if outermost:
                recorder.emit(Kind.BACKWARD_END)

    return replace(torch.autograd, "backward", backward)
