"""How many bytes a process or thread has read, as the kernel counts them. Linux only, no root needed.

`asked` is what read() and its like returned, whether it came from storage or from the page cache, but not from
sockets; `storage` is what had to be fetched from storage, for mapped files and by reading ahead too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ddlprof.collect.process.kept_file import KernelFile


class ReadBytes(NamedTuple):
    """Cumulative bytes."""

    asked: int
    storage: int

    @classmethod
    def of(cls, raw: bytes) -> ReadBytes:
        """What was read of the counters."""
        words = raw.split(None, 10)  # rchar: N, wchar: N, syscr: N, syscw: N, read_bytes: N, ...
        if words[0] != b"rchar:":
            raise ValueError("no counters")
        return cls(int(words[1]), int(words[9]))


class IoCounters:
    """The counters of the whole process (`whole_process`), or of the thread that makes it, which costs the same."""

    def __init__(self, whole_process: bool) -> None:
        """Raises OSError where the kernel counts nothing or does not show it."""
        owner = "self" if whole_process else "thread-self"
        self._file = KernelFile(f"/proc/{owner}/io")
        self.read: Callable[[], bytes] = partial(self._file.read, 512)
        """The current counters, for `ReadBytes.of`; about a microsecond."""

    def doubt(self) -> None:
        """To be called by a reader of what are no counters."""
        self._file.doubt()
