"""Signs of progress on stderr for work that takes a while: a bar on a terminal, and nothing or lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddlprof.base.errors import complain
from ddlprof.cli.screen import console_on, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

LINE_EVERY_S = 30.0
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


@contextmanager
def simulating() -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`, in jobs; without a terminal it says a line now and then, for logs."""
    if is_terminal(sys.stderr):
        with progress("simulating") as advance:
            yield advance
        return
    said_s = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s >= LINE_EVERY_S and done < total:
            said_s = now_s
            complain(f"simulated {done:,} of {total:,} jobs")

    yield say
