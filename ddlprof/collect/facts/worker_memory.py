"""What the children of this process, such as a loader's workers, copy of its memory, and how much new memory they take.

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
_SPARING, _LATER, _FIRST = 50, 1000, 16
"""Next reading after so many times what one has taken, at first and after so many: Linux goes through all pages of a
process for it."""
_FIELD = re.compile(rb"^(Private_Dirty|Anonymous): +(\d+) kB", re.MULTILINE)


class WorkerMemory:
    """The bytes that the living children have copied, or taken anew, since they were first seen.

    One object serves one thread. None: there are no children, there is no new reading, or the system does not tell.
    """

    def __init__(self, clock: Callable[[], int], cpu_clock: Callable[[], int], proc: str = "/proc") -> None:
        """`cpu_clock`: of this thread, so that readings on a busy machine are not taken for long ones."""
        self._clock, self._cpu_clock = clock, cpu_clock
        self._proc = proc
        self._next_ns = self._readings = 0
        self._first: dict[int, tuple[int, int]] = {}
        """The private and the anonymous bytes of each child when it was first seen."""
        self._copied: int | None = None
        self._new: int | None = None

    def look(self) -> None:
        """Reads the memory of all children, unless the last reading is not long enough ago."""
        now, begin = self._clock(), self._cpu_clock()
        if now < self._next_ns:
            return
        found: dict[int, tuple[int, int]] = {}
        for child in self._children():
            with suppress(OSError, KeyError):  # it has ended, or is none of ours
                found[child] = self._memory(child)
        self._first = {child: self._first.get(child, memory) for child, memory in found.items()}
        copied = new = 0
        for child, (private, anonymous) in found.items():
            first_private, first_anonymous = self._first[child]
            taken = max(0, anonymous - first_anonymous)
            copied, new = copied + max(0, private - first_private - taken), new + taken
        self._copied, self._new = (copied, new) if found else (None, None)
        self._readings += bool(found)
        self._next_ns = now + (_SPARING if self._readings < _FIRST else _LATER) * (self._cpu_clock() - begin)

    def copied_bytes(self) -> int | None:
        """What they have copied. A reading is told once: where readings take long, most calls have none."""
        self.look()
        copied, self._copied = self._copied, None
        return copied

    def new_bytes(self) -> int | None:
        """The memory that is new to them, by the reading of `copied_bytes`. That of a child that has ended is free."""
        new, self._new = self._new, None
        return new

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
