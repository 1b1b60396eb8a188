"""`torch.autograd.backward`, which `Tensor.backward` calls: one call is one micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.install import Uninstall, quietly, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


def install(recorder: Recorder, before: Callable[[Any, bool, bool], None], after_each: Callable[[], None]) -> Uninstall:
    """`before(roots, nested, kept)` and `after_each()` are called around each backward of the training thread.

    `nested`: inside another one, as reentrant checkpointing runs them; `kept`: the graph is needed afterwards.
    """
    import torch

    original = torch.autograd.backward
    nested = False

    def look(args: Any, kwargs: Any, inside: bool) -> None:
        before(args[0] if args else kwargs["tensors"], inside, _keeps_graph(*args[1:], **kwargs))

    quiet_look = quietly(look, recorder)

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
            quiet_look(args, kwargs, not outermost)
            return original(*args, **kwargs)
        finally:
            nested = not outermost
            after_each()
            if outermost:
                recorder.emit(Kind.BACKWARD_END)

    return replace(torch.autograd, "backward", backward)


def _keeps_graph(
    grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False, *_: Any, **others: Any
) -> bool:
    """With the arguments of `torch.autograd.backward`."""
    return bool(create_graph if retain_graph is None else retain_graph)
