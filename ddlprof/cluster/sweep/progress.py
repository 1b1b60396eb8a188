"""How far cases are that run in other processes: each writes a number into a file of its own, and a thread adds them.

Files instead of a queue, as joblib's backends share no queues. A worker on another machine cannot write; its cases then
count when their results are there.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_EVERY_S = 0.25


@dataclass
class Teller:
    """Tells how many jobs of one case have ended; travels to the process in which the case runs."""

    path: Path
    told_s: float = 0.0

    def __call__(self, ended: int) -> None:
        """Writes it now and then."""
        now_s = time.monotonic()
        if now_s - self.told_s >= _EVERY_S:
            self.told_s = now_s
            with contextlib.suppress(OSError):
                self.path.write_text(str(ended), encoding="ascii")


class Progress:
    """Calls `progress` with the sum of what all tellers told, now and then, until it is left."""

    def __init__(self, cases: int, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._folder = tempfile.TemporaryDirectory(prefix="ddlprof-", ignore_cleanup_errors=True)
        self._paths = [Path(self._folder.name) / str(number) for number in range(cases)]
        self._ended = [0] * cases
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._add, daemon=True)

    def by(self, number: int) -> Teller:
        """The teller of a case."""
        return Teller(self._paths[number])

    def ended(self, number: int, jobs: int) -> None:
        """A case has ended with all its jobs."""
        self._ended[number] = jobs

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()
        self._folder.cleanup()

    def _add(self) -> None:
        while not self._left.wait(_EVERY_S):
            self._add_once()

    def _add_once(self) -> None:
        self._progress(sum(map(max, self._ended, map(_number, self._paths))))


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not yet there, or just being written
        return 0
