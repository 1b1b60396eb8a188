"""The commands that train need torch, which is no dependency: it comes with the environment of the training."""

from __future__ import annotations

import importlib.util
import sys

from ddlprof.base.errors import UserError


def missing_torch() -> str:
    """What to do where torch is not installed. Names the Python: the usual cause is that ddlprof is in another one."""
    return (
        f"torch is not installed here ({sys.executable}): install it as https://pytorch.org says for your machine, "
        "or pip install 'ddlprof[torch]'"
    )


def require_torch() -> None:
    """Raises UserError where torch is not installed; does not import it, which takes seconds."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(missing_torch())
