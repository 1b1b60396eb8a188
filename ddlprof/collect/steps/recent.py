"""The latest steps of this process, for whoever asks while it trains."""

from __future__ import annotations

import threading
from collections import deque

from ddlprof.model.classes import OPTIONAL, RECORDED
from ddlprof.model.records import StepRow

MOST_STEPS = 1000


class RecentSteps:
    """Filled by the helper thread, read by any other."""

    def __init__(self) -> None:
        self._rows: deque[StepRow] = deque(maxlen=MOST_STEPS)
        self._lock = threading.Lock()
        self.asked = False
        """Whether anybody ever asked for them."""

    def add(self, row: StepRow) -> None:
        """A step that has ended."""
        with self._lock:
            self._rows.append(row)

    def means_s(self, steps: int) -> dict[str, float]:
        """The means over the last `steps` steps, at most `MOST_STEPS`, in seconds by `NAME_s`.

        Only of steps in which the same classes were measured as in the last one: where one was not, its time is in
        another. What was not measured is not in it.
        """
        self.asked = True
        with self._lock:
            rows = list(self._rows)[-steps:]
        if not rows:
            return {}
        measured = _measured(rows[-1])
        alike = [row for row in rows if _measured(row) == measured]
        means = {}
        for name in RECORDED:
            values = [value for row in alike if (value := getattr(row, f"{name}_ns")) is not None]
            if len(values) == len(alike):
                means[f"{name}_s"] = sum(values) / len(values) / 1e9
        return means


def _measured(row: StepRow) -> tuple[bool, ...]:
    return tuple(getattr(row, f"{name}_ns") is not None for name in OPTIONAL)
