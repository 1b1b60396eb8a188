"""The number of this process, from the kernel: some scripts and tests replace `os.getpid`, which leaves this one alone.

It is imported by children of the script, too, long after the script began.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from nt import getpid
else:
    from posix import getpid

__all__ = ["getpid"]
