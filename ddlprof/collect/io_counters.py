"""How many bytes a process or thread has read, as the kernel counts them. Linux only, no root needed.

`asked` is what read() and its like returned, whether it came from storage or from the page cache, but not from
sockets; `storage` is what had to be fetched from storage, for mapped files and by reading ahead too.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class ReadBytes(NamedTuple):
    """Cumulative bytes."""

    asked: int
    storage: int

    @classmethod
    def of(cls, raw: bytes) -> ReadBytes:
        """What was read of the counters."""
        words = raw.split(None, 10)  # rchar: N, wchar: N, syscr: N, syscw: N, read_bytes: N, ...
        return cls(int(words[1]), int(words[9]))


class IoCounters:
    """Of the whole process (`whole_process`), or of the thread that makes it, which costs the same."""

    def __init__(self, whole_process: bool) -> None:
        """Raises OSError where the kernel counts nothing or does not show it."""
        owner = "self" if whole_process else "thread-self"
        self._descriptor = os.open(f"/proc/{owner}/io", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The current counters, for `ReadBytes.of`; about a microsecond."""
        return os.pread(self._descriptor, 512, 0)
