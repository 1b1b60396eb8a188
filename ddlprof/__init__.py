"""Shows where the time of each training step of an unmodified PyTorch script goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddlprof.base import old_names
from ddlprof.base.errors import DdlprofError
from ddlprof.base.package import VERSION as __version__

if TYPE_CHECKING:
    from ddlprof.api import load
    from ddlprof.collect.current import recent_means
    from ddlprof.collect.loader.data_calls import data_call
    from ddlprof.profiling import profile

__all__ = ["DdlprofError", "__version__", "data_call", "load", "profile", "recent_means"]


def _short_names() -> Mapping[str, str]:
    from ddlprof.registry import short_names

    return short_names()


old_names.stand_last(_short_names)


_MODULES = {
    "load": "api", "data_call": "collect.loader.data_calls", "profile": "profiling", "recent_means": "collect.current",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports `load` and others on first use: they need pandas, which a training process must not import."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
