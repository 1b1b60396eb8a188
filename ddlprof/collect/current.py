"""The session of this process, if it is being profiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ddlprof.collect.steps.recent import RecentSteps


class Session(Protocol):
    """What is asked of a session from elsewhere; `ddlprof.collect.session` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def directory(self) -> Path | None: ...
    @property
    def recent(self) -> RecentSteps: ...


_session: Session | None = None


def begin(session: Session) -> None:
    """From now on this one is the process's."""
    global _session
    _session = session


def end(session: Session) -> None:
    """It is no longer."""
    global _session
    if _session is session:
        _session = None


def current() -> Session | None:
    """The session under way in this process; None in a child made by fork, which is another."""
    return _session if _session is not None and _session.pid == os.getpid() else None


def recent_means(steps: int = 100, prefix: str = "") -> dict[str, float]:
    """Mean seconds of the step and of its classes over the last steps of this rank, for the loggers of a training loop.

    The names are those of the columns of `steps.csv`, after `prefix`: `{"step_s": 0.31, "compute_s": 0.28, ...}`.
    Empty where this process is not profiled, or has made no step; a class that was not measured is not in it. Costs
    microseconds. At most the last 1000 steps are known, the very last ones a quarter of a second later.
    """
    session = current()
    means = session.recent.means_s(steps) if session is not None else {}
    return {prefix + name: value for name, value in means.items()}
