"""Chooses the core, which runs at every event: the one in C, or the one in Python where C could not be built.

The module in C says of which source it was built (`SOURCE`). In a checkout that source lies beside it, and where it has
changed since, the core in Python runs: what an older core reports is not what the rest expects.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ddlprof.base.errors import complain

PYTHON_ONLY = "DDLPROF_PYTHON_CORE"
"""The environment variable that selects the core in Python."""
REBUILD = "python setup.py -q build_ext --inplace --force"
"""What builds the core in C anew, typed in the checkout."""
_SOURCE = Path(__file__).with_name("_core.c")


def is_stale(built_of: int | None, source: Path = _SOURCE) -> bool:
    """Whether a core in C was built of another source than the one beside it; an installed one has none.

    `built_of`: the checksum of its source, None where it does not say.
    """
    try:
        return crc32(source.read_bytes()) != built_of
    except OSError:
        return False


def say_stale() -> None:
    """Tells the user, once for all ranks of a job."""
    if os.environ.get("RANK", "0") == "0":
        complain(
            f"the core in C is of an older checkout: the slower one in Python runs; in {_SOURCE.parents[2]}: {REBUILD}"
        )


STALE = False
"""Whether there is a core in C that does not fit."""
C: Any = None
"""The core in C, for what only it has; None where the one in Python runs."""
if TYPE_CHECKING:
    from ddlprof.collect.python_core import EventLog, LoopWatch, plain_size, set_tensor

    IN_C = False
else:
    try:
        if os.environ.get(PYTHON_ONLY):
            raise ImportError
        from ddlprof.collect import _core

        STALE = is_stale(getattr(_core, "SOURCE", None))
        if STALE:
            say_stale()
            raise ImportError
        from ddlprof.collect._core import EventLog, LoopWatch, plain_size, set_tensor

        IN_C, C = True, _core
    except ImportError:
        from ddlprof.collect.python_core import EventLog, LoopWatch, plain_size, set_tensor

        IN_C = False

__all__ = ["IN_C", "C", "EventLog", "LoopWatch", "plain_size", "set_tensor"]
