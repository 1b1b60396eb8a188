"""The forward of the outermost modules."""

from __future__ import annotations

from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.install import Uninstall


def install(context: HookContext) -> Uninstall:
    """See `OuterModules.install`."""
    return context.modules.install()
