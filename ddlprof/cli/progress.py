"""Signs of progress on stderr for work that takes a while; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddlprof.cli.screen import console_on, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PATIENCE_S = 1.0  # work that is done by then needs no bar


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`; the bar appears once the work has taken a second, and goes away at the end."""
    if not is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    began = time.monotonic()
    bar: Progress | None = None

    def advance(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - began > PATIENCE_S:
            bar = _bar(what)
            bar.start()
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows that work of unknown length goes on, and for how long it has."""
    if not is_terminal(sys.stderr):
        yield
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _shown(what, SpinnerColumn(), TimeElapsedColumn(), total=None):
        yield


def _bar(what: str) -> Progress:
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    return _shown(what, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), total=100)


def _shown(what: str, *columns: ProgressColumn, total: float | None) -> Progress:
    """What goes on, on the terminal behind standard error, until it stops."""
    from rich.progress import Progress, TextColumn

    shown = Progress(
        TextColumn("ddlprof: {task.description}", markup=False),
        *columns,
        console=console_on(sys.stderr),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    shown.add_task(what, total=total)
    return shown
