"""What the training thread does at a moment, by the latest events of the unfinished step."""

from __future__ import annotations

from enum import Enum
from typing import Any

from ddlprof.model.events import Event, Kind, Purpose
from ddlprof.model.source_locations import BETWEEN, CHECKPOINT, EVALUATION, FORWARD, LOOP, ROLLOUT, UPDATE

_CLAIMING = frozenset((Kind.H2D_BEGIN, Kind.COMM_BEGIN, Kind.ZERO_GRAD_BEGIN))
"""Kinds of events after which another hook measures the time, so that it is not `other`."""

_LOADING = frozenset((Kind.DATA_BEGIN, Kind.EPOCH))
"""Kinds of events after which a batch is made or waited for."""

_BUSY: dict[int, bool] = {
    Kind.FORWARD_BEGIN: True, Kind.BACKWARD_BEGIN: True, Kind.OPTIMIZER_BEGIN: True,
    Kind.FORWARD_END: False, Kind.BACKWARD_END: False, Kind.OPTIMIZER_END: False,
}  # fmt: skip
"""Whether the thread computes after an event of this kind."""


_COMPUTING: dict[int, str] = {Kind.OPTIMIZER_BEGIN: UPDATE, Kind.BACKWARD_END: BETWEEN}
"""What is sampled of computing after an event of this kind."""


class Where(Enum):
    """What the training thread does at a moment, according to the events."""

    OTHER = 0
    GAP = 1
    """Between forward and update, where no hook is: computing or other."""
    ELSEWHERE = 2
    DATA = 3
    """In a wait for data."""


def where(recent: list[Event]) -> Where:
    """The class of the time after these events, the latest of the unfinished step."""
    if recent and recent[-1][0] in _LOADING:
        return Where.DATA
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
    """The purpose of a forward without gradients, as decided for the last ones like it."""
    return getattr(payload() if callable(payload) else payload, "purpose", None)


def work_by_events(recent: list[Event]) -> str:
    """What the thread does according to the hooks; empty if unknown."""
    for kind, _, _, _, payload in reversed(recent):
        if kind == Kind.FORWARD_BEGIN:
            purpose = _purpose(payload)
            return FORWARD if purpose is None else _WORDS.get(purpose, FORWARD)
        if kind == Kind.CHECKPOINT_BEGIN:
            return CHECKPOINT
        if kind in (Kind.FORWARD_END, Kind.CHECKPOINT_END):
            return ""
    return ""


def evaluates(recent: list[Event]) -> bool:
    """Whether a forward of the unfinished step was for no training, so that a loop may be one over batches."""
    forwards = (payload for kind, _, grad, _, payload in recent if kind == Kind.FORWARD_BEGIN and not grad)
    return any(_purpose(payload) is not Purpose.TRAINING for payload in forwards)


def compute_work(recent: list[Event]) -> str | None:
    """What is sampled of computing at a moment: `LOOP` in forwards and losses, `UPDATE` in optimizers, `BETWEEN` after
    a backward; else None."""
    if recent and (recent[-1][0] in _CLAIMING or recent[-1][0] in _LOADING):
        return None
    for kind, _, grad, _, _ in reversed(recent):
        if kind in (Kind.FORWARD_BEGIN, Kind.FORWARD_END):
            return LOOP if grad else None
        if kind in _BUSY:
            return _COMPUTING.get(kind)
    return None
