"""Sees that no step ends and nothing else happens, and has this rank's state written, again and again until it does.

The threads of the script are asked nothing: what is read are the recorder's events, stacks, and the kernel's files.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddlprof.base.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.model.hang import ASKED_NAME, HANG_AFTER_S, RankState, standstill_s

_RECENT_STEPS = 64
_LEAST_STEPS = 3
"""Before this many steps the first batch, compilation and much else may take any time."""
_ANSWERS_S, _LEAST_ANSWERS_S = 5.0, 0.5
_LONGEST_PACE_S = 30.0
_SAME_PACES = 4
"""A standstill of which nothing was written for so many paces is over; what is written next is of another one."""


class HangWatch:
    """Watches one rank; called by the helper thread about once a second.

    `folder` gives the folder of the rank's files, None while there is none. `state` makes the rank's state, and
    `begin_look` is called when the rank has been quiet for half the time, so that `state` can tell what it used since.
    """

    def __init__(
        self,
        recorder: Recorder,
        hang_after_s: float | None,
        folder: Callable[[], Path | None],
        state: Callable[[Quiet], RankState],
        begin_look: Callable[[], None],
    ) -> None:
        self.active = True
        """Whether the hooks are installed, without which nothing seems to happen."""
        self._recorder = recorder
        self._least_s = HANG_AFTER_S if hang_after_s is None else hang_after_s
        self._folder = folder
        self._state = state
        self._begin_look = begin_look
        self._step_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self.steps = 0
        self._calls = -1
        self._moved_s = self._step_s = self._asked_next_s = 0.0
        self._first_unix_ns: int | None = None
        self._written_s, self._written_unix_ns = 0.0, 0
        self._looking = self._moves = False
        self._last: RankState | None = None
        self._stood_at = ""
        self.failure = ""
        """Why a state could not be written, if it could not."""

    @property
    def limit_s(self) -> float:
        """After so many seconds without any event the rank stands still."""
        in_order = sorted(self._step_ns)  # the script may have a module `statistics` of its own
        usual_ns = in_order[len(in_order) // 2] if in_order else 0
        return standstill_s(usual_ns / 1e9, self._least_s)

    @property
    def answers_s(self) -> float:
        """Within so many seconds the rank answers when another one has asked."""
        return max(_LEAST_ANSWERS_S, min(_ANSWERS_S, self._least_s / 3))

    @property
    def pace_s(self) -> float:
        """How often a rank that stands still writes so."""
        return max(1.0, min(_LONGEST_PACE_S, self._least_s / 2))

    @property
    def stands(self) -> bool:
        """Whether it was standing still when it last wrote."""
        return self._last is not None and self._last.stands

    def step_ended(self, step_ns: int) -> None:
        """Called after each step."""
        self.steps += 1
        self._step_s = time.perf_counter()
        self._stood_at = ""
        if self.steps > 1:
            self._step_ns.append(step_ns)
        if self._first_unix_ns is not None and self._last is not None and self._last.stands:
            self._resume()

    def poll(self) -> None:
        """Called about once a second."""
        now, calls = time.perf_counter(), self._recorder.calls
        if calls != self._calls or not self.active or not self._recorder.active:
            self._calls, self._moved_s, self._looking = calls, now, False
            if self._last is not None and self._last.stands and self._moves:
                self._resume()
            self._moves = True
        else:
            self._moves = False
        if not self.active or self.steps < _LEAST_STEPS:
            return
        quiet_s, limit_s = now - self._moved_s, self.limit_s
        if quiet_s > limit_s / 2 and not self._looking:
            self._looking = True
            self._begin_look()
        stands = quiet_s > limit_s
        due = stands and (self._first_unix_ns is None or now - self._written_s > self.pace_s)
        if due or (now >= self._asked_next_s and self._is_asked(now)):
            self.write(stands)
            if due:
                self.ask()

    def write(self, stands: bool, **changes: object) -> None:
        """Writes this rank's state. `changes`: fields of it that are known better."""
        folder = self._folder()
        if folder is None:
            return
        now, unix_ns = time.perf_counter(), time.time_ns()
        if self._first_unix_ns is None or now - self._written_s > _SAME_PACES * self.pace_s:
            self._first_unix_ns = unix_ns
        self._written_s, self._written_unix_ns = now, unix_ns
        quiet = Quiet(self, stands, now - self._moved_s, now - (self._step_s or now), self._first_unix_ns)
        state = self._last = self._state(quiet)
        if changes:
            state = self._last = replace(state, stood_at=self._stood_at, **changes)  # type: ignore[arg-type]
        elif stands:
            self._stood_at = state.thread.place
        try:
            state.write(folder)
        except OSError as error:
            self.failure = f"{error.strerror or error}"

    def _resume(self) -> None:
        """Writes that the rank went on, and forgets the standstill."""
        folder, last = self._folder(), self._last
        self._first_unix_ns = self._last = None
        if folder is not None and last is not None:
            try:
                replace(last, resumed=True, unix_ns=time.time_ns()).write(folder)
            except OSError as error:
                self.failure = f"{error.strerror or error}"

    def _is_asked(self, now: float) -> bool:
        self._asked_next_s = now + self.answers_s
        folder = self._folder()
        try:
            return folder is not None and os.stat(folder / ASKED_NAME).st_mtime_ns > self._written_unix_ns
        except OSError:
            return False

    def ask(self) -> None:
        """Has all other ranks say what they do."""
        folder = self._folder()
        if folder is not None:
            try:
                (folder / ASKED_NAME).touch()
                self._written_unix_ns = os.stat(folder / ASKED_NAME).st_mtime_ns  # it need not answer itself
            except OSError as error:
                self.failure = f"{error.strerror or error}"


class Quiet:
    """How long a rank has been quiet, for its state."""

    def __init__(self, watch: HangWatch, stands: bool, quiet_s: float, since_step_s: float, first_unix_ns: int) -> None:
        self.stands = stands
        self.quiet_s = quiet_s
        self.since_step_s = since_step_s
        self.first_unix_ns = first_unix_ns
        self.limit_s = watch.limit_s
        self.answers_s = watch.answers_s + 2.0
        self.steps = watch.steps
