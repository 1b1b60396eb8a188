"""Looks at a run again and again until it has ended or the user stops the view.

`ddlprof run --live` starts the view beside the training (`watch_beside`) as a process in a session of its own, so that
neither Ctrl-C nor the training's death by a signal takes it along before it has given the terminal back. The training
tells it to end by SIGTERM; where it cannot, its death does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ddlprof.base.units import short_time
from ddlprof.live.displays import Lines, Pinned
from ddlprof.live.follower import RunFollower
from ddlprof.live.snapshot import SILENT, Observer, Snapshot
from ddlprof.live.words import ending
from ddlprof.model.records import GOOD_ENDS

if TYPE_CHECKING:
    import psutil

GRACE_S = 20.0
"""The time after ranks have failed in which an elastic launcher starts them again, or gives up."""
SILENT_END_S = 300.0
"""A run is given up once all ranks that have not ended have been silent for so many seconds."""
MOST_SHARE = 0.05
"""The largest share of one core that looking may take: jobs of many ranks are looked at less often."""

Pause = Callable[[float], bool]
"""`pause(seconds)`: waits; returns whether to go on."""
SCREEN_INTERVAL_S, LINES_INTERVAL_S = 2.0, 10.0
_LOOK_S = 0.5
"""The time between two looks at whether the process is there."""
_STDERR = 2
_NO_TERMINAL = -1
_NICE = 10
"""The niceness of the view: it must not take cores from the training."""


class Display(Protocol):
    """Shows snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Shows the latest snapshot."""


def watch(observer: Observer, displays: Sequence[Display], interval_s: float, pause: Pause, typed: str) -> str:
    """Shows the run every `interval_s` until it has ended; returns the last word, empty if `pause` ended it."""
    while True:
        snapshot, until_next_s = look(observer, displays, interval_s)
        word = last_word(snapshot, typed)
        if word:
            return word
        if not pause(until_next_s):
            return ""


def look(observer: Observer, displays: Sequence[Display], interval_s: float) -> tuple[Snapshot, float]:
    """Looks once and shows it; returns it with the seconds until the next look."""
    began = time.thread_time()
    snapshot = observer.look(time.time_ns())
    for display in displays:
        display.show(snapshot)
    if snapshot.read_share < 1:
        return snapshot, 0.0
    return snapshot, max(interval_s, (time.thread_time() - began) / MOST_SHARE)


def last_word(snapshot: Snapshot, typed: str) -> str:
    """The closing sentence for a run that will write nothing more; empty while it may."""
    if snapshot.read_share < 1 or not snapshot.ranks:
        return ""
    silent_s = snapshot.silent_s or 0.0
    if snapshot.ended:
        well = all(rank.state in GOOD_ENDS for rank in snapshot.ranks)
        return ending(snapshot, typed) if well or silent_s > GRACE_S else ""
    waited_for = [rank.state for rank in snapshot.ranks if not rank.ended]
    if silent_s > SILENT_END_S and set(waited_for) == {SILENT}:
        return (
            f"nothing was written for {short_time(silent_s)}: the run was killed after step {snapshot.steps:,}, or its "
            f"machine cannot be reached; next: ddlprof report {typed}"
        )
    return ""


def await_run(follower: RunFollower, wait_s: float | None, pause: Pause) -> bool:
    """Waits until there is a run, for `wait_s` at most (None: as long as `pause` says); returns whether there is."""
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        follower.advance()
        if follower.found:
            return True
        if (deadline is not None and time.monotonic() >= deadline) or not pause(0.5):
            return False


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
    except psutil.Error:  # the process ended between the two calls
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
    """Shows the run until the training ends, even if all ranks have: an elastic launcher may start them again."""
    if not await_run(follower, None, pause):
        return
    observer = Observer(follower, total_steps)
    with suppress(OSError):  # the terminal is gone
        while True:
            _, until_next_s = look(observer, [display], interval_s)
            if not pause(until_next_s):
                return
