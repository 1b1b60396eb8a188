"""Reads the stack of another thread without holding one of its frames while that thread can run.

Whoever holds a frame when it ends keeps its local variables alive, and they are then destroyed in the wrong thread.
Some must not be: `repr` of a tensor has a local guard (`torch._C._DisableFuncTorch`) that restores the state of the
thread in which it is destroyed. If that happens elsewhere, the training thread silently computes wrong gradients.

The interpreter can switch threads between two instructions of Python code, but not inside a C function that calls
nothing written in Python. So the whole stack is read in one call of `list`, over iterators written in C. These create
each frame when asked for it and hold none once they are exhausted. What is kept (code, positions) is harmless.

Some programs have audit hooks written in Python (filelock, hence also users of inductor). `sys._current_frames` calls
them, but only once and before there is a frame. Reading the attribute `f_code` would call them at each frame, so the C
function `PyFrame_GetCode` is used.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, compress, islice, repeat, starmap
from operator import attrgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, NamedTuple

USER, INSTALLED, INTERPRETER, OURS = "user", "installed", "interpreter", "ours"
"""Whose code a frame runs (see `CodeLocator`)."""

Position = tuple[CodeType, int]
"""A frame's code and current instruction. It identifies the call under way without keeping the frame alive."""

_CODE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyFrame_GetCode", ctypes.pythonapi))  # keeps the GIL
_INSTRUCTION = attrgetter("f_lasti")
_GLOBALS = attrgetter("f_globals")
_WALKS = 3
"""A stack is walked three times at once: for code, instructions and module names."""
_ONCE = [()]
"""For `starmap`: one call without arguments."""


class StackFrame(NamedTuple):
    """What is kept of one frame."""

    code: CodeType
    instruction: int
    module: str

    def line(self) -> int:
        """The line number, as the frame's `f_lineno` would give it."""
        for begin, end, line in self.code.co_lines():
            if begin <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno


def stack_of_thread(thread: int) -> list[StackFrame]:
    """The stack of a thread, innermost frame first.

    Empty if there is no such thread, and in Python without the GIL, where threads run at the same time.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return []
    return _levels(_at_once(_walk(_innermost(thread))))


def threads() -> list[int]:
    """The threads that run Python code."""
    return list(filter(None, _at_once(chain.from_iterable(starmap(sys._current_frames, _ONCE)))))


def stack_of_frame(frame: FrameType | None) -> list[StackFrame]:
    """The stack of the calling thread from `frame` outwards, innermost frame first."""
    return _levels(list(_walk(repeat(frame, _WALKS))))


def positions(frame: FrameType | None) -> list[Position]:
    """The positions of the calling thread from its outermost frame to `frame`."""
    found: list[Position] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found[::-1]


def inside_loop(stack: list[StackFrame], update: Sequence[Position]) -> tuple[list[StackFrame], StackFrame | None]:
    """The frames inside the loop that makes the updates, and the frame of that loop; all frames if there is none."""
    shared = 0
    for outer, (code, instruction) in zip(reversed(stack), update, strict=False):
        if outer.code is not code:
            break
        shared += 1
        if outer.instruction != instruction:
            break
    inside = stack[: len(stack) - shared + 1] if shared else stack
    return inside, inside[-1] if shared else None


def _levels(found: list[Any]) -> list[StackFrame]:
    return [
        StackFrame(code, instruction, name if isinstance(name, str) else "")
        for code, instruction, name in filter(None, found)
    ]


def _innermost(thread: int) -> Iterator[Any]:
    """Yields a thread's innermost frame once for each walk. Asked once more, it releases the frame."""
    frame = map(methodcaller("get", thread), starmap(sys._current_frames, _ONCE))
    return chain.from_iterable(map(repeat, frame, repeat(_WALKS)))


def _walk(innermost: Iterator[Any]) -> Iterator[Any]:
    """Yields code, instruction and module name of each frame. Afterwards `innermost` holds no frame."""
    one, two, three = (_outwards(islice(innermost, 1)) for _ in range(_WALKS))
    names = map(dict.get, map(_GLOBALS, three), repeat("__name__"))
    levels = zip(map(_CODE, one), map(_INSTRUCTION, two), names, strict=True)  # strict: all reach the end
    return chain(levels, innermost)


def _outwards(innermost: Iterator[Any]) -> Iterator[Any]:
    """Yields a frame, then its callers: `frame`, `getattr(frame, "f_back")`, and so on until None."""
    return iter(accumulate(chain(innermost, repeat("f_back")), getattr).__next__, None)


def _at_once(iterator: Iterator[Any]) -> list[Any]:
    """The items, and Nones, with no other thread running before all are there."""
    enabled: list[bool] = []  # whether the user had garbage collection enabled
    try:
        return list(_uncollected(iterator, enabled))
    except BaseException:
        if enabled and enabled[0]:
            gc.enable()
        raise


def _uncollected(iterator: Iterator[Any], enabled: list[bool]) -> Iterator[Any]:
    """Yields the same items, and Nones, with garbage collection switched off meanwhile.

    A collection runs Python code (finalizers, callbacks of `gc`). Before Python 3.12 any allocation can start one.
    """
    return chain(
        map(enabled.append, starmap(gc.isenabled, _ONCE)),
        starmap(gc.disable, _ONCE),
        iterator,
        starmap(gc.enable, compress(_ONCE, enabled)),
    )
