"""The view that `ddlprof run --live` starts: beside a training process, on its terminal, until that process ends.

It is a process in a session of its own, so that neither Ctrl-C nor the training's death by a signal takes it along
before it has given the terminal back. The training tells it to end by SIGTERM; where it cannot, its death does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ddlprof.live.displays import Lines, Pinned
from ddlprof.live.follower import RunFollower
from ddlprof.live.loop import Display, Pause, await_run, look
from ddlprof.live.snapshot import Observer

if TYPE_CHECKING:
    import psutil

SCREEN_INTERVAL_S, LINES_INTERVAL_S = 2.0, 10.0
_LOOK_S = 0.5
"""The time between two looks at whether the process is there."""
_STDERR = 2
_NO_TERMINAL = -1
_NICE = 10
"""Behind the training, where cores are scarce."""


def watch_beside(follower: RunFollower, pid: int, interval_s: float | None, total_steps: int | None) -> None:
    """Shows the run below what process `pid` prints, or as lines where standard error is no terminal."""
    import psutil

    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return
    if hasattr(os, "nice"):
        os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the training's
    signal.signal(signal.SIGTERM, _leave)  # the training says so
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # by nohup: it goes on
        signal.signal(signal.SIGHUP, _leave)

    def pause(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            time.sleep(min(left, _LOOK_S))
            if not _is_there(process):
                return False
            if time.monotonic() >= deadline:
                return True

    if os.isatty(_STDERR) and os.environ.get("TERM") not in (None, "dumb", "unknown"):
        pinned = Pinned(_STDERR, lambda: has_terminal(pid))
        try:
            _watch(follower, total_steps, pinned, interval_s or SCREEN_INTERVAL_S, pause)
        finally:
            with suppress(OSError):
                pinned.release()
    else:
        _watch(follower, total_steps, Lines(sys.stderr), interval_s or LINES_INTERVAL_S, pause)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _is_there(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:  # between the two
        return False


def has_terminal(pid: int) -> bool:
    """Whether a process is in the foreground of its terminal, or not known: after Ctrl-Z or with `&`, the shell is."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        group, foreground = int(fields[2]), int(fields[5])
    except (OSError, ValueError, IndexError):
        return True
    return foreground in (group, _NO_TERMINAL)


def _watch(follower: RunFollower, total_steps: int | None, display: Display, interval_s: float, pause: Pause) -> None:
    """Until the training ends, whatever its ranks do: an elastic launcher may start them again."""
    if not await_run(follower, None, pause):
        return
    observer = Observer(follower, total_steps)
    with suppress(OSError):  # the terminal is gone
        while True:
            _, until_next_s = look(observer, [display], interval_s)
            if not pause(until_next_s):
                return
