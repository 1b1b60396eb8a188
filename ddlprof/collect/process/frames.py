"""The stack of another thread, read without ever holding a frame of it while that thread can run.

Who holds a frame when it ends keeps its local variables alive, and they die with the holder, in the wrong thread. Some
may not: `repr` of a tensor has a guard among them that restores the thread it dies in (`torch._C._DisableFuncTorch`),
and a training thread without that guard's end computes wrong gradients without a word.

The interpreter can switch threads between any two instructions of ours, but not inside a function written in C that
calls nothing written in Python. So a whole stack is read in one call of `list`, over iterators written in C that make
frames only as they are asked for them, and hold none once they are exhausted. What is kept is harmless to keep.

An audit hook is written in Python where somebody has one (filelock has, and so whoever compiles with inductor). What
calls it is asked once, before there is a frame: `sys._current_frames`. An attribute `f_code` calls it, too, at each
frame; the C API's `PyFrame_GetCode` does not.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from itertools import accumulate, chain, compress, islice, repeat, starmap
from operator import attrgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, NamedTuple

Position = tuple[CodeType, int]
"""A frame's code and the instruction it is at: it says which call is under way without keeping the frame alive."""

_CODE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyFrame_GetCode", ctypes.pythonapi))  # keeps the GIL
_INSTRUCTION = attrgetter("f_lasti")
_GLOBALS = attrgetter("f_globals")
_WALKS = 3
"""How often a stack is walked side by side: for each of these."""
_ONCE = [()]
"""The arguments of one call without any."""


class Level(NamedTuple):
    """What is known of a frame without the frame."""

    code: CodeType
    instruction: int
    module: str

    def line(self) -> int:
        """The `f_lineno` of the frame."""
        for begin, end, line in self.code.co_lines():
            if begin <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno


def stack_of_thread(thread: int) -> list[Level]:
    """The stack of a thread from its innermost frame.

    Empty if there is no such thread, and where threads run at the same time (Python built without the GIL): no
    moment is safe there.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return []
    enabled: list[bool] = []  # as the user has it
    try:
        return _levels(list(_uncollected(_walk(_innermost(thread)), enabled)))
    except BaseException:
        if enabled and enabled[0]:
            gc.enable()
        raise


def stack_of_frame(frame: FrameType | None) -> list[Level]:
    """The stack of the calling thread that ends in `frame`."""
    return _levels(list(_walk(repeat(frame, _WALKS))))


def positions(frame: FrameType | None) -> list[Position]:
    """The stack of the calling thread that ends in `frame`, from its outermost frame."""
    found: list[Position] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found[::-1]


def _levels(found: list[Any]) -> list[Level]:
    return [
        Level(code, instruction, name if isinstance(name, str) else "")
        for code, instruction, name in filter(None, found)
    ]


def _innermost(thread: int) -> Iterator[Any]:
    """The innermost frame of a thread, once for each walk; asked for once more, it no longer holds the frame."""
    frame = map(methodcaller("get", thread), starmap(sys._current_frames, _ONCE))
    return chain.from_iterable(map(repeat, frame, repeat(_WALKS)))


def _walk(innermost: Iterator[Any]) -> Iterator[Any]:
    """For each frame, its code, its instruction and the name of its module. `innermost` holds no frame afterwards."""
    one, two, three = (_outwards(islice(innermost, 1)) for _ in range(_WALKS))
    names = map(dict.get, map(_GLOBALS, three), repeat("__name__"))
    levels = zip(map(_CODE, one), map(_INSTRUCTION, two), names, strict=True)  # to their end, where no frame is left
    return chain(levels, innermost)


def _outwards(innermost: Iterator[Any]) -> Iterator[Any]:
    """A frame and those that called it: `frame`, `getattr(frame, "f_back")`, and so on until None."""
    return iter(accumulate(chain(innermost, repeat("f_back")), getattr).__next__, None)


def _uncollected(iterator: Iterator[Any], enabled: list[bool]) -> Iterator[Any]:
    """The same items, among Nones, while no garbage is collected: before Python 3.12 any allocation can call for it.

    A collection calls what is written in Python: finalizers, and who listens to collections.
    """
    return chain(
        map(enabled.append, starmap(gc.isenabled, _ONCE)),
        starmap(gc.disable, _ONCE),
        iterator,
        starmap(gc.enable, compress(_ONCE, enabled)),
    )
