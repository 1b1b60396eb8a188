"""Where the training thread is while its time goes to `other`: the source line, a few times a second.

A sample counts for the step in which it was taken, once that step has ended: what comes after the last step (an
evaluation, the end of the process) belongs to none.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from enum import Enum
from typing import Any, NamedTuple

from ddlprof.collect.process.frames import Position, positions, stack_of_thread
from ddlprof.collect.process.whose_code import Places
from ddlprof.model.events import Event, Kind, Purpose
from ddlprof.model.records import Flag
from ddlprof.model.source_places import CHECKPOINT, EVALUATION, FORWARD, ROLLOUT, SourcePlace

_CLAIMING = frozenset((Kind.DATA_BEGIN, Kind.H2D_BEGIN, Kind.COMM_BEGIN, Kind.ZERO_GRAD_BEGIN))
"""After one of these the thread is in a class that another hook measures."""

_MOST_WAITING = 1000
_PLACES_A_STEP = 20


_BUSY: dict[int, bool] = {
    Kind.FORWARD_BEGIN: True, Kind.BACKWARD_BEGIN: True, Kind.OPTIMIZER_BEGIN: True,
    Kind.FORWARD_END: False, Kind.BACKWARD_END: False, Kind.OPTIMIZER_END: False,
}  # fmt: skip
"""After such an event the thread computes, or does so no more."""


class Where(Enum):
    """What the training thread does at a moment, as far as events tell."""

    OTHER = 0
    GAP = 1
    """Computing, or other: between forward and update, where no hook is."""
    ELSEWHERE = 2


def where(recent: list[Event]) -> Where:
    """The class of the time after these events, the last of the unfinished step."""
    if recent and recent[-1][0] in _CLAIMING:
        return Where.ELSEWHERE
    in_step = busy = False
    for kind, _, grad, _, payload in recent:
        if kind == Kind.FORWARD_BEGIN and not grad and not in_step:
            busy = _purpose(payload) is Purpose.TRAINING
            continue
        if kind in _BUSY:
            busy = _BUSY[kind]
            in_step |= busy
    return Where.ELSEWHERE if busy else Where.GAP if in_step else Where.OTHER


_WORDS = {Purpose.ROLLOUT: ROLLOUT, Purpose.EVALUATION: EVALUATION}


def _purpose(payload: Any) -> Purpose | None:
    """What a forward without gradients is for, as it was decided of the last ones that are alike."""
    return getattr(payload() if callable(payload) else payload, "purpose", None)


def _what_by_events(recent: list[Event]) -> str:
    """What the hooks know of this moment; empty if nothing."""
    for kind, _, _, _, payload in reversed(recent):
        if kind == Kind.FORWARD_BEGIN:
            purpose = _purpose(payload)
            return FORWARD if purpose is None else _WORDS.get(purpose, FORWARD)
        if kind == Kind.CHECKPOINT_BEGIN:
            return CHECKPOINT
        if kind in (Kind.FORWARD_END, Kind.CHECKPOINT_END):
            return ""
    return ""


class _Sample(NamedTuple):
    marks: int
    """`Recorder.marks` before it."""
    place: SourcePlace


class StackSampler:
    """Samples wait until the step in which they were taken is over."""

    def __init__(self) -> None:
        self.places = Places()
        self._update: list[Position] = []
        self._new_update: list[Position] = []
        self._waiting: deque[_Sample] = deque(maxlen=_MOST_WAITING)

    def at_update(self) -> None:
        """Runs in the training thread after an update: its stack tells where the training loop is."""
        self._new_update = positions(sys._getframe(1))

    def sample(self, thread: int | None, recent: list[Event], marks: int) -> None:
        """Notes where the training thread is, if by the last events of its step that is in `other`."""
        here = where(recent)
        if here is Where.ELSEWHERE:
            return
        stack = stack_of_thread(thread or 0)
        if here is Where.OTHER or not self.places.in_torch(stack):
            if self._new_update:
                self._update, self._new_update = self.places.without_torch(self._new_update), []
            place = self.places.find(stack, self._update)
            if place is not None:
                what = _what_by_events(recent) or place.what
                self._waiting.append(_Sample(marks, SourcePlace(place.text, what)))

    def of_step(self, marks: int, flags: int) -> dict[SourcePlace, int]:
        """The samples taken before the mark of this number, which ended a step with these flags."""
        if not self._waiting or self._waiting[0].marks >= marks:
            return {}
        counts: Counter[SourcePlace] = Counter()
        while self._waiting and self._waiting[0].marks < marks:
            place = self._waiting.popleft().place
            evaluates = place.what == FORWARD and flags & Flag.EVALUATION
            counts[place._replace(what=EVALUATION) if evaluates else place] += 1
        return dict(counts.most_common(_PLACES_A_STEP))
