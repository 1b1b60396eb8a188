"""Modules that only evaluations call: the one inside DistributedDataParallel, an average of the weights.

The search for outermost modules is over after the first steps, so `eval()` of a module that it cannot have found begins
another, until the next update.
"""

from __future__ import annotations

import functools
from typing import Any

from ddlprof.collect.compiler.dynamo import used_dynamo
from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.install import Uninstall, fail_open, replace


def install(context: HookContext) -> Uninstall:
    """Wraps `nn.Module.eval`."""
    torch, modules = context.torch, context.modules
    original = torch.nn.Module.eval

    def begins(module: Any) -> None:
        found = module in modules.seen and not isinstance(getattr(module, "module", None), torch.nn.Module)
        # What torch.compile compiled without the patch of the search it would compile again with it.
        if not found and not modules.inside and context.recorder.listens() and not used_dynamo():
            modules.search()
            context.later(modules.settle)

    begins = fail_open(begins, context.recorder)

    @functools.wraps(original)
    def eval(module: Any) -> Any:
        if not torch.compiler.is_compiling():
            begins(module)
        return original(module)

    return replace(torch.nn.Module, "eval", eval)
