"""`zero_grad` of optimizers and modules: the gradients of large models take a while to be zeroed or freed.

It is computing wherever the loop has it: behind the update, before the forward, or before the backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.model.events import Kind

_BEGIN, _END = int(Kind.ZERO_GRAD_BEGIN), int(Kind.ZERO_GRAD_END)  # slow to look up in an enumeration


def install(context: HookContext) -> Uninstall:
    """The methods that `torch.optim` and `torch.nn` have, which those of other classes call in the end."""
    torch, recorder = context.torch, context.recorder
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # the recorder hears of any other

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not recorder.emit(_BEGIN):
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                recorder.emit(_END)

        return zero_grad

    owners = (torch.optim.Optimizer, torch.nn.Module)
    return all_of(*(replace(owner, "zero_grad", timed(vars(owner)["zero_grad"])) for owner in owners))
