"""Chooses the core, which runs at every event: the one in C, or the one in Python where C could not be built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

PYTHON_ONLY = "DDLPROF_PYTHON_CORE"
"""The environment variable that selects the core in Python."""

if TYPE_CHECKING:
    from ddlprof.collect.python_core import EventLog, LoopWatch, plain_size, set_tensor

    IN_C = False
else:
    try:
        if os.environ.get(PYTHON_ONLY):
            raise ImportError
        from ddlprof.collect._core import EventLog, LoopWatch, plain_size, set_tensor

        IN_C = True
    except ImportError:
        from ddlprof.collect.python_core import EventLog, LoopWatch, plain_size, set_tensor

        IN_C = False

__all__ = ["IN_C", "EventLog", "LoopWatch", "plain_size", "set_tensor"]
