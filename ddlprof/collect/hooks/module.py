"""The forward of the outermost modules."""

from __future__ import annotations

from ddlprof.collect.install import Uninstall
from ddlprof.collect.surroundings import Surroundings


def install(around: Surroundings) -> Uninstall:
    """See `OuterModules.install`."""
    return around.modules.install()
