"""Trains many small models as one: models of one shape with different hyper-parameters (horizontal fusion)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlprof.extensions.fusion.fused import Fused
    from ddlprof.extensions.fusion.scaling import Scaler
    from ddlprof.extensions.fusion.studies import ask_tell

__all__ = ["Fused", "Scaler", "ask_tell"]


def __getattr__(name: str) -> Any:
    """Imports each on first use, as it needs torch, which commands and reports that only read results do not."""
    if name == "Fused":
        from ddlprof.extensions.fusion.fused import Fused

        return Fused
    if name == "Scaler":
        from ddlprof.extensions.fusion.scaling import Scaler

        return Scaler
    if name == "ask_tell":
        from ddlprof.extensions.fusion.studies import ask_tell

        return ask_tell
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
