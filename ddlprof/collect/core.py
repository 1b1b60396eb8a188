"""Which core runs at every event of a training: the one in C, or where it could not be built the one in Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

PYTHON_ONLY = "DDLPROF_PYTHON_CORE"
"""An environment variable: where it is set, the core in Python runs."""

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
