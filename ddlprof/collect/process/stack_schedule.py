"""When the helper thread looks at the stack: often at first, and less and less often the longer it trains."""

from __future__ import annotations

from ddlprof.model.stack_samples import sparseness

LOOK_S = 0.25
"""The most that is between two looks in the first minutes."""
FIRST_LOOK_S, FIRST_LOOKS = 0.03, 40
"""The time between the very first ones, so that a training of two seconds has enough of them, and their number, from
which on it grows with the looks."""
_FREQUENT_LOOK_S, _FREQUENT_LOOKS = 0.04, 500
"""The same while `other` is large: the time grows later."""
_LARGE_OTHER = 0.03
"""The share of `other` in the step time from which the thread looks more often."""


class StackSchedule:
    """`is_due` says at each wake-up whether to look."""

    def __init__(self) -> None:
        self.looks = 0
        """How often it was due so far."""
        self._first_s = self._next_s = 0.0

    def pause_s(self, other_ns: int, steps_ns: int) -> float:
        """The time until the thread has to wake up for a look. `other_ns`: what was `other` of `steps_ns` lately."""
        most_s = min(LOOK_S, FIRST_LOOK_S * max(1.0, self.looks / FIRST_LOOKS))
        if other_ns < _LARGE_OTHER * steps_ns:
            return most_s
        return min(most_s, _FREQUENT_LOOK_S * max(1.0, self.looks / _FREQUENT_LOOKS))

    def is_due(self, now_s: float, other_ns: int, steps_ns: int) -> bool:
        """Whether to look now. The time between two looks grows with the time since the first one (`sparseness`)."""
        if now_s < self._next_s:
            return False
        self._first_s = self._first_s or now_s
        every_s = self.pause_s(other_ns, steps_ns) * sparseness(now_s - self._first_s)
        self._next_s = max(self._next_s, now_s - every_s) + every_s
        self.looks += 1
        return True
