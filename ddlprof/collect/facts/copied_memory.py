"""How much memory the children of this process, such as a loader's workers, have copied of what they share with it.

A forked process shares its parent's pages until one of them writes there. To read an object of Python is to write its
reference count, so workers copy a list of objects page by page, though nobody changes it. Linux tells for each process
how much of its memory is private (`Private_Dirty`) and how much is no file's (`Anonymous`): copying a shared page adds
to the first one alone, memory that is new to both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress

from ddlprof.base.real_process import getpid

_MOST_CHILDREN = 64
_SPARING = 200
"""Next reading after so many times what one has taken: Linux goes through all pages of a process for it."""
_FIELD = re.compile(rb"^(Private_Dirty|Anonymous): +(\d+) kB", re.MULTILINE)


class CopiedMemory:
    """The bytes that the living children have copied since they were first seen. One object serves one thread."""

    def __init__(self, clock: Callable[[], int], cpu_clock: Callable[[], int], proc: str = "/proc") -> None:
        """`cpu_clock`: of this thread, so that readings on a busy machine are not taken for long ones."""
        self._clock, self._cpu_clock = clock, cpu_clock
        self._proc = proc
        self._next_ns = 0
        self._first: dict[int, tuple[int, int]] = {}
        """The private and the anonymous bytes of each child when it was first seen."""
        self._last: int | None = None

    def copied_bytes(self) -> int | None:
        """The sum over the children, or that of the last reading; None: there are none, or the system does not tell."""
        now, begin = self._clock(), self._cpu_clock()
        if now < self._next_ns:
            return self._last
        copied: dict[int, int] = {}
        for child in self._children():
            with suppress(OSError, KeyError):  # it has ended, or is none of ours
                private, anonymous = self._memory(child)
                first = self._first.setdefault(child, (private, anonymous))
                copied[child] = max(0, private - first[0] - max(0, anonymous - first[1]))
        self._first = {child: self._first[child] for child in copied}
        self._last = sum(copied.values()) if copied else None
        self._next_ns = now + _SPARING * (self._cpu_clock() - begin)
        return self._last

    def _children(self) -> list[int]:
        try:
            return [int(child) for child in self._read(f"self/task/{getpid()}/children").split()[:_MOST_CHILDREN]]
        except FileNotFoundError:
            return []

    def _memory(self, process: int) -> tuple[int, int]:
        found = {name: 1024 * int(number) for name, number in _FIELD.findall(self._read(f"{process}/smaps_rollup"))}
        return found[b"Private_Dirty"], found[b"Anonymous"]

    def _read(self, name: str) -> bytes:
        with open(os.path.join(self._proc, name), "rb", buffering=0) as file:
            return file.read()
