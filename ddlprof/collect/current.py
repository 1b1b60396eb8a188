"""The session of this process, if it is being profiled, and its latest steps, which can be read during the training."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import Protocol

from ddlprof.base.real_process import getpid
from ddlprof.model.classes import OPTIONAL, RECORDED
from ddlprof.model.records import StepRow

MOST_STEPS = 1000


class RecentSteps:
    """The latest steps; filled by the helper thread, read by any other."""

    def __init__(self) -> None:
        self._rows: deque[StepRow] = deque(maxlen=MOST_STEPS)
        self._lock = threading.Lock()
        self.asked = False
        """Whether `means_s` was ever called."""

    def add(self, row: StepRow) -> None:
        """Adds a step that has ended."""
        with self._lock:
            self._rows.append(row)

    def means_s(self, steps: int) -> dict[str, float]:
        """The means over the last `steps` steps, at most `MOST_STEPS`, in seconds by `NAME_s`.

        Steps in which other classes were measured than in the last one are left out, because the time of a class that
        is not measured is part of another class. Classes that were not measured are missing.
        """
        self.asked = True
        with self._lock:
            rows = list(self._rows)[-steps:]
        if not rows:
            return {}
        measured = _measured(rows[-1])
        alike = [row for row in rows if _measured(row) == measured]
        means = {}
        for name in RECORDED:
            values = [value for row in alike if (value := getattr(row, f"{name}_ns")) is not None]
            if len(values) == len(alike):
                means[f"{name}_s"] = sum(values) / len(values) / 1e9
        return means


def _measured(row: StepRow) -> tuple[bool, ...]:
    return tuple(getattr(row, f"{name}_ns") is not None for name in OPTIONAL)


class CurrentSession(Protocol):
    """The part of a session that other modules use; `ddlprof.collect.session` implements it."""

    @property
    def pid(self) -> int: ...
    @property
    def directory(self) -> Path | None: ...
    @property
    def recent(self) -> RecentSteps: ...
    def forked(self) -> None: ...


_session: CurrentSession | None = None
_hears_of_forks = False


def begin(session: CurrentSession) -> None:
    """Makes a session the one of this process."""
    global _session, _hears_of_forks
    _session = session
    if not _hears_of_forks and hasattr(os, "register_at_fork"):  # it cannot be taken back: once for all sessions
        _hears_of_forks = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """Called in each forked child process."""
    if _session is not None:
        _session.forked()


def end(session: CurrentSession) -> None:
    """Called when the session is over: this process then has none."""
    global _session
    if _session is session:
        _session = None


def current() -> CurrentSession | None:
    """The session under way in this process; None if there is none, as in a child made by fork."""
    return _session if _session is not None and _session.pid == getpid() else None


def recent_means(steps: int = 100, prefix: str = "") -> dict[str, float]:
    """Mean seconds of the step and of its classes over the last steps of this rank, for the loggers of a training loop.

    The names are those of the columns of `steps.csv`, after `prefix`: `{"step_s": 0.31, "compute_s": 0.28, ...}`.
    Empty if this process is not profiled, or has made no step; a class that was not measured is missing. A call costs
    microseconds. At most the last 1000 steps are known, and a new step becomes known a quarter of a second later.
    """
    session = current()
    means = session.recent.means_s(steps) if session is not None else {}
    return {prefix + name: value for name, value in means.items()}
