"""Checks that torch is installed, for commands that train.

It is no dependency: it comes with the training's environment.
"""

from __future__ import annotations

import importlib.util
import sys

from ddlprof.base.errors import UserError


def missing_torch() -> str:
    """What to do if torch is not installed. Names the Python, as ddlprof is often installed in another one."""
    return (
        f"torch is not installed here ({sys.executable}): install it as https://pytorch.org says for your machine, "
        "or pip install 'ddlprof[torch]'; to use the Python of a training that has it: ddlprof run -- python SCRIPT"
    )


def require_torch() -> None:
    """Raises UserError if torch is not installed. Does not import torch, which takes seconds."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(missing_torch())
