"""How far simulations are: a bar on a terminal, and elsewhere a line now and then, for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddlprof.base.errors import complain
from ddlprof.cli.progress import progress
from ddlprof.cli.screen import is_terminal

LINE_EVERY_S = 30.0


@contextmanager
def simulating() -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`, in jobs."""
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
