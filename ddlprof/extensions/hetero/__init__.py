"""One job on GPUs that are not alike: which GPUs to use, how to split the batch, how to exchange gradients.

A training calls `apply` to follow a plan of `ddlprof plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.training import apply

__all__ = ["apply"]


def __getattr__(name: str) -> Any:
    """Imports it on first use: the list of commands needs only the name of this room."""
    if name == "apply":
        from ddlprof.extensions.hetero.training import apply

        return apply
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
