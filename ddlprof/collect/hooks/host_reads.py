"""What the host reads of tensors in the first steps: it tells models that act or are evaluated from teachers.

The methods are tensors' own again when the first steps are over.
"""

from __future__ import annotations

import threading
from typing import Any

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.hooks.method_wrappers import HeardShadow, MethodWrappers, away_while_tracing
from ddlprof.collect.install import Uninstall, fail_open
from ddlprof.collect.recorder import FIRST_STEPS
from ddlprof.torch_private.engine import no_torch_function

_METHODS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")


def install(context: HookContext) -> Uninstall:
    """Tells `FrozenModules` of numbers that the host asks of tensors; truth values are mostly checks of arguments."""
    torch, recorder, wrappers = context.torch, context.recorder, MethodWrappers()
    frozen = context.modules.frozen

    def look(this: Any) -> None:
        if threading.get_ident() != recorder.thread:
            return
        if recorder.boundaries > FIRST_STEPS:
            context.later(wrappers.take)
            return
        with no_torch_function(torch):
            if this.dtype is not torch.bool:
                frozen.reads(this.dim(), this.is_floating_point())

    look = fail_open(look, recorder)

    for name in _METHODS:
        wrappers.add(torch.Tensor, name, HeardShadow(getattr(torch.Tensor, name), look))
    return away_while_tracing(context, wrappers)
