"""Looks at a run until it has ended, or nobody wants to know any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ddlprof.live.follower import RunFollower
from ddlprof.live.snapshot import SILENT, Observer, Snapshot
from ddlprof.live.words import ending, lasting

GRACE_S = 20.0
"""After ranks have failed, an elastic launcher starts them again, or gives up."""
SILENT_END_S = 300.0
"""Where all ranks that have not ended are silent for so long, nobody waits for them."""
MOST_SHARE = 0.05
"""Of one core: jobs of many ranks are looked at less often."""
_ENDED_WELL = ("ok", "stopped")

Pause = Callable[[float], bool]
"""`pause(seconds)`: waits; returns whether to go on."""


class Display(Protocol):
    """Shows snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Shows the latest."""


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
    """What to say of a run of which nothing more will come; empty while something may."""
    if snapshot.read_share < 1 or not snapshot.ranks:
        return ""
    silent_s = snapshot.silent_s or 0.0
    if snapshot.ended:
        well = all(rank.state in _ENDED_WELL for rank in snapshot.ranks)
        return ending(snapshot, typed) if well or silent_s > GRACE_S else ""
    waited_for = [rank.state for rank in snapshot.ranks if not rank.ended]
    if silent_s > SILENT_END_S and set(waited_for) == {SILENT}:
        return (
            f"nothing was written for {lasting(silent_s)}: the run was killed after step {snapshot.steps:,}, or its "
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
