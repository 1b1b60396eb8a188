"""One look at a run that may hang: asks its ranks what they do, waits a moment for those that can answer, compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddlprof.analysis.hang_facts import Hang
from ddlprof.analysis.hangs import hang_of
from ddlprof.model.hang import ASKED_NAME
from ddlprof.store import RunData, load_run

_ANSWER_S = 8.0
"""A rank that can write answers within five seconds, unless --hang-after makes that sooner."""
_PAUSE_S = 0.5


def look(run: str, sleep: Callable[[float], object] = time.sleep) -> Hang | None:
    """Why the run hangs; None where no rank says that it stands still. Raises UserError where there is no run."""
    data = load_run(run)
    running = _running(data)
    asked_ns = _ask(run, data) if running else None
    if asked_ns is not None:
        end = time.monotonic() + _ANSWER_S
        while time.monotonic() < end:
            sleep(_PAUSE_S)
            data = load_run(run)
            answered = {state.rank for state in data.standing if state.unix_ns >= asked_ns}
            if running <= answered:
                break
    return hang_of(data)


def _running(run: RunData) -> set[int]:
    """The ranks of the latest attempt that have not said how they ended."""
    latest = max((rank.attempt for rank in run.ranks), default=0)
    return {rank.rank for rank in run.ranks if rank.attempt == latest and rank.end is None}


def _ask(run: str, data: RunData) -> int | None:
    """Has the ranks say what they do; returns the unix time in ns of the question, None where they cannot be asked."""
    latest = max((rank.attempt for rank in data.ranks), default=0)
    asked_ns = time.time_ns()
    try:
        (Path(run) / f"attempt-{latest}" / ASKED_NAME).touch()
    except OSError:  # an object store, or a folder of others
        return None
    return asked_ns
