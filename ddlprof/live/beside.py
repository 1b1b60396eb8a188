"""The view that `ddlprof run --live` starts: beside a training process, on its terminal, until that process ends.

It is a process in a session of its own, so that neither Ctrl-C nor the training's death by a signal takes it along
before it has given the terminal back. The training tells it to end through a socket on its standard input; where it
cannot, its death does.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from contextlib import suppress

from ddlprof.live.displays import Lines, Pinned
from ddlprof.live.follower import RunFollower
from ddlprof.live.loop import Display, Pause, await_run
from ddlprof.live.snapshot import Observer

SCREEN_INTERVAL_S, LINES_INTERVAL_S = 2.0, 10.0
_LOOK_S = 0.5
"""The time between two looks at whether the process is there."""
_STDIN, _STDERR = 0, 2


def watch_beside(follower: RunFollower, pid: int, interval_s: float | None, total_steps: int | None) -> None:
    """Shows the run below what process `pid` prints, or as lines where standard error is no terminal."""
    import psutil

    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: sys.exit(0))
    told = _is_socket(_STDIN)

    def pause(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if told and select.select([_STDIN], [], [], min(left, _LOOK_S))[0]:
                return False
            if not told:
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
            snapshot = observer.look(time.time_ns())
            if snapshot.started or isinstance(display, Pinned):
                display.show(snapshot)
            if not pause(0.0 if snapshot.read_share < 1 else interval_s):
                return


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False
