"""Where the training thread is while its time goes to `other`: the source line, a few times a second.

The line reported is the innermost one of the user's own code (not of installed packages or the standard library).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

from ddlprof.model.events import Event, Kind

_CLAIMING = frozenset((Kind.DATA_BEGIN, Kind.H2D_BEGIN, Kind.COMM_BEGIN))
"""After one of these the thread is in a class that another hook measures."""

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = tuple({p for k, p in sysconfig.get_paths().items() if k in ("stdlib", "platstdlib", "purelib", "platlib")})


def in_other(recent: list[Event]) -> bool:
    """Whether the time after these events (since the step began) is in the class `other`."""
    if recent and recent[-1][0] in _CLAIMING:
        return False
    for kind, _, grad, _, _ in recent:
        if kind == Kind.BACKWARD_BEGIN or kind == Kind.OPTIMIZER_BEGIN or (kind == Kind.FORWARD_BEGIN and grad):
            return False
    return True


class StackSampler:
    """Counts source lines between two calls of `take`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._base = os.getcwd()

    def sample(self, thread: int | None, recent: list[Event]) -> None:
        """Notes where the training thread is, if by the last events of its step that is in `other`."""
        if in_other(recent):
            place = self.place(sys._current_frames().get(thread or 0))
            if place is not None:
                self._counts[place] = self._counts.get(place, 0) + 1

    def place(self, frame: FrameType | None) -> str | None:
        """`file:line function` of the innermost frame of the user's; else of the innermost one not ours."""
        fallback: str | None = None
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(_OWN):
                if not name.startswith(("<", *_LIBRARY)):
                    return self._text(frame)
                fallback = fallback or self._text(frame)
            frame = frame.f_back
        return fallback

    def _text(self, frame: FrameType) -> str:
        path = frame.f_code.co_filename
        absolute = os.path.join(self._base, path)
        if absolute.startswith(self._base + os.sep):
            path = absolute[len(self._base) + 1 :]
        return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"

    def take(self) -> dict[str, int]:
        """The counts since the last call, the twenty most frequent lines."""
        counts, self._counts = self._counts, {}
        return dict(sorted(counts.items(), key=lambda item: -item[1])[:20])
