"""A progress bar on stderr for work that takes a while; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0  # work that is done by then needs no bar


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`; the bar appears once the work has taken a second, and goes away at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    began = time.monotonic()
    shown = False

    def advance(done: int, total: int) -> None:
        nonlocal shown
        if shown or time.monotonic() - began > PATIENCE_S:
            shown = True
            share = done / total if total else 1.0
            sys.stderr.write(f"\rddlprof: {what} {share:4.0%}")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
