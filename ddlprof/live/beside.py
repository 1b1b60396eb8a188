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

from ddlprof.live.displays import Lines, Pinned
from ddlprof.live.follower import RunFollower
from ddlprof.live.loop import Display, Pause, await_run, look
from ddlprof.live.snapshot import Observer

SCREEN_INTERVAL_S, LINES_INTERVAL_S = 2.0, 10.0
_LOOK_S = 0.5
"""The time between two looks at whether the process is there."""
_STDERR = 2
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
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: sys.exit(0))

    def pause(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            time.sleep(min(left, _LOOK_S))
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            if time.monotonic() >= deadline:
                return True

    if os.isatty(_STDERR) and os.environ.get("TERM") not in (None, "dumb", "unknown"):
        pinned = Pinned(_STDERR)
        try:
            _watch(follower, total_steps, pinned, interval_s or SCREEN_INTERVAL_S, pause)
        finally:
            with suppress(OSError):
                pinned.release()
    else:
        _watch(follower, total_steps, Lines(sys.stderr), interval_s or LINES_INTERVAL_S, pause)


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
