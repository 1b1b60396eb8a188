"""One look at a run that may hang: asks its ranks what they do, waits a moment for those that can answer, compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddlprof.analysis.hang_facts import Hang
from ddlprof.analysis.hangs import hang_of
from ddlprof.model.hang import ASKED_NAME, HANG_SUFFIX
from ddlprof.store import load_run

_ANSWER_S = 8.0
"""A rank that can write answers within five seconds, unless --hang-after makes that sooner."""
_PAUSE_S = 0.5


def look(run: str, sleep: Callable[[float], object] = time.sleep) -> Hang | None:
    """Why the run hangs; None where no rank says that it stands still. Raises UserError where there is no run."""
    data = load_run(run)
    latest = max((rank.attempt for rank in data.ranks), default=0)
    running = {rank.rank for rank in data.ranks if rank.attempt == latest and rank.end is None}
    folder = Path(run) / f"attempt-{latest}"
    asked_ns = _ask(folder) if running else None
    if asked_ns is None:
        return hang_of(data)
    end = time.monotonic() + _ANSWER_S
    while running and time.monotonic() < end:
        sleep(_PAUSE_S)
        running = {rank for rank in running if not _has_answered(folder / f"rank-{rank}{HANG_SUFFIX}", asked_ns)}
    return hang_of(load_run(run))


def _ask(folder: Path) -> int | None:
    """Has the ranks say what they do; returns when, by the clock of the run's disk, and None where that cannot be."""
    try:
        (folder / ASKED_NAME).touch()
        return (folder / ASKED_NAME).stat().st_mtime_ns
    except OSError:  # an object store, or a folder of others
        return None


def _has_answered(file: Path, asked_ns: int) -> bool:
    try:
        return file.stat().st_mtime_ns >= asked_ns
    except OSError:
        return False
