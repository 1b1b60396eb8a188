"""One job on GPUs that are not alike: which to use, how to divide batch and layers, how to exchange gradients.

A training calls `apply` to follow a plan of `ddlprof plan`, or `apply_stages` where the plan divides the layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.stages.training import apply_stages
    from ddlprof.extensions.hetero.training import apply

__all__ = ["apply", "apply_stages"]


_MODULES = {"apply": "training", "apply_stages": "stages.training"}


def __getattr__(name: str) -> Any:
    """Imports it on first use: the list of commands needs only the name of this room."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
