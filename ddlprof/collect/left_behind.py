"""Flags of hooks that an exception has left behind.

A hook that times a call sets a flag while the call lasts, so that calls inside it are part of it. KeyboardInterrupt,
and what one thread raises in another, may arrive between any two instructions, also where the flag is about to be
reset. Every later call would then be taken for one inside. So where the flag is set, the stack is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any

from ddlprof.collect.recorder import Recorder


class Left:
    """Whether the flag of some hooks was left behind. Calls inside may be many: the stack is walked once an event."""

    def __init__(self, recorder: Recorder, *hooks: Callable[..., Any]) -> None:
        """`hooks`: the functions that set the flag."""
        self._recorder = recorder
        self._codes = {hook.__code__ for hook in hooks}
        self._looked_at = -1

    def add(self, hook: Callable[..., Any]) -> None:
        """Adds a function that sets the flag."""
        self._codes.add(hook.__code__)

    def behind(self, frame: FrameType) -> bool:
        """Whether no call is under way that has set the flag. `frame`: that of the hook that found it set.

        Always False in other threads than the training thread, and as long as nothing has happened since it was asked:
        the end of the call would be an event.
        """
        calls = self._recorder.calls
        if calls == self._looked_at or threading.get_ident() != self._recorder.thread:
            return False
        self._looked_at = calls
        return not called_from(self._codes, frame)


def called_from(codes: Container[CodeType], frame: FrameType) -> bool:
    """Whether `frame` is called, from whatever depth, by a function with one of these codes."""
    caller = frame.f_back
    while caller is not None:
        if caller.f_code in codes:
            return True
        caller = caller.f_back
    return False
