"""Modules that only evaluations call: the one inside DistributedDataParallel, an average of the weights.

The search for outermost modules is over after the first steps, so `eval()` of a module that it cannot have found begins
another, until the next update.
"""

from __future__ import annotations

import functools
from typing import Any

from ddlprof.collect.compiler.dynamo import used_dynamo
from ddlprof.collect.install import Uninstall, quietly, replace
from ddlprof.collect.surroundings import Surroundings


def install(around: Surroundings) -> Uninstall:
    """Wraps `nn.Module.eval`."""
    torch, modules = around.torch, around.modules
    original = torch.nn.Module.eval

    def begins(module: Any) -> None:
        found = module in modules.seen and not isinstance(getattr(module, "module", None), torch.nn.Module)
        # What torch.compile compiled without the patch of the search it would compile again with it.
        if not found and not modules.inside and around.recorder.listens() and not used_dynamo():
            modules.search()
            around.later(modules.settle)

    begins = quietly(begins, around.recorder)

    @functools.wraps(original)
    def eval(module: Any) -> Any:
        if not torch.compiler.is_compiling():
            begins(module)
        return original(module)

    return replace(torch.nn.Module, "eval", eval)
