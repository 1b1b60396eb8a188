"""A thread that stands still where a test wants to look at its stack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def standing(work: Callable[[], object], begun: threading.Event, release: threading.Event) -> Iterator[int]:
    """The number of a thread whose work has set `begun` and waits for `release`; it ends with the context."""
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield thread.ident or 0
    finally:
        release.set()
        thread.join()
