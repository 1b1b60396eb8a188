"""Trains many small models as one: models of one shape with different hyper-parameters (horizontal fusion)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlprof.extensions.fusion.fused import Fused
    from ddlprof.extensions.fusion.scaling import Scaler
    from ddlprof.extensions.fusion.studies import ask_tell

__all__ = ["Fused", "Scaler", "ask_tell"]


_MODULES = {"Fused": "fused", "Scaler": "scaling", "ask_tell": "studies"}


def __getattr__(name: str) -> Any:
    """Imports each on first use, as it needs torch, which commands and reports that only read results do not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
