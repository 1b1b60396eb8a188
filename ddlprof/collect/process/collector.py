"""Times the pauses of Python's garbage collector, by its own callbacks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.model.records import CollectorPauses

_FULL = 2


class CollectorTimes:
    """The pauses of the collector so far. `watch` begins to time them; the helper thread asks for what is new."""

    def __init__(self) -> None:
        self._begun: int | None = None
        self._number = self._total_ns = self._longest_ns = self._full = 0
        self._told = 0

    def watch(self) -> Callable[[], None]:
        """Adds the callback; returns what removes it."""
        callback = self._callback()
        gc.callbacks.append(callback)

        def uninstall() -> None:
            self._begun = None
            with suppress(ValueError):  # the script may have cleared the list
                gc.callbacks.remove(callback)

        return uninstall

    def _callback(self) -> Callable[[str, Mapping[str, Any]], None]:
        clock = time.perf_counter_ns

        def at_collection(phase: str, info: Mapping[str, Any]) -> None:
            if phase == "start":
                self._begun = clock()
            elif self._begun is not None:
                pause_ns, self._begun = clock() - self._begun, None
                self._number += 1
                self._total_ns += pause_ns
                if pause_ns > self._longest_ns:
                    self._longest_ns = pause_ns
                if info["generation"] == _FULL:
                    self._full += 1

        return at_collection

    def news(self, now_ns: int) -> CollectorPauses | None:
        """The pauses so far; None if there were no more since the last call. `now_ns`: relative to the origin."""
        if self._number == self._told:
            return None
        self._told = self._number
        return CollectorPauses(now_ns, self._number, self._total_ns, self._longest_ns, self._full)
