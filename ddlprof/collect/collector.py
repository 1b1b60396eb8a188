"""Times the pauses of Python's garbage collector, by its own callbacks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

from ddlprof.collect import core
from ddlprof.model.records import CollectorPauses


class CollectorTimes:
    """The pauses of the collector so far. `watch` begins to time them; the helper thread asks for what is new.

    Only the core in C does: the collector drops what a callback raises, and one in Python would now and then raise the
    KeyboardInterrupt of a signal that came during a collection, so that Ctrl-C did not end the training.
    """

    def __init__(self) -> None:
        self._told = core.C.collections()[0] if core.C else 0

    def watch(self) -> Callable[[], None]:
        """Adds the callback; returns what removes it."""
        if core.C is None:
            return lambda: None
        callback = core.C.at_collection
        core.C.forget_collections()
        self._told = 0
        gc.callbacks.append(callback)

        def uninstall() -> None:
            with suppress(ValueError):  # the script may have cleared the list
                gc.callbacks.remove(callback)

        return uninstall

    def news(self, now_ns: int) -> CollectorPauses | None:
        """The pauses so far; None if there were no more since the last call. `now_ns`: relative to the origin."""
        if core.C is None:
            return None
        number, total_ns, longest_ns, full = core.C.collections()
        if number == self._told:
            return None
        self._told = number
        return CollectorPauses(now_ns, number, total_ns, longest_ns, full)
