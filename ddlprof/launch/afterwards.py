"""What ddlprof does once a training has ended: in one place, which keeps the training's exit code.

From the moment a training has ended its exit code is the answer. Whatever is left to do then, in the training's own
process or in the one that started it, is an `EndTask` given to `afterwards`. A step that raises anything at all, is
ended by a signal, or takes longer than its limit costs a line on standard error and the rest of that step.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import allocate_lock, start_new_thread  # before the script can replace them
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ddlprof.base.errors import DdlprofError, complain
from ddlprof.base.text import shell_word

_GRACE_S = 10.0
"""How long after the limits of all steps the process is ended, if no exception reaches its main thread."""
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
_ALARM = getattr(signal, "SIGALRM", None)
_exit = os._exit


class EndTask(NamedTuple):
    """A piece of work after the end of the training."""

    failure: str
    """What a line says of it if it fails, before the reason."""
    limit_s: float
    work: Callable[[], object]
    run: Callable[[], Path | None] = lambda: None
    """The run directory, if the line says how to show it."""


class _Enough(BaseException):
    """Ends a step. No `except Exception` in it may catch this."""


class LastResort:
    """A thread that ends this process where a step is stuck in a call that no signal ends, such as one to a dead store.

    Threads cannot be started by exit handlers, so it is started before.
    """

    def __init__(self) -> None:
        self._begun, self._over = allocate_lock(), allocate_lock()
        self._begun.acquire()
        self._over.acquire()
        self._limit_s, self._code = 0.0, 0
        try:
            start_new_thread(self._wait, ())
        except RuntimeError:  # there can be no more threads: it is done without
            self._begun.release()

    def begin(self, limit_s: float, code: int) -> None:
        """Ends the process with this exit code unless `end` is called within `limit_s`."""
        self._limit_s, self._code = limit_s, code
        self._release(self._begun)

    def end(self) -> None:
        """The work is done."""
        self._release(self._over)

    @staticmethod
    def _release(lock: Any) -> None:
        with suppress(RuntimeError):  # it is released already
            lock.release()

    def _wait(self) -> None:
        self._begun.acquire()
        if self._over.acquire(timeout=self._limit_s):
            return
        try:
            complain(f"the end of the run is stuck: the process is ended (exit code {self._code})")
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
        finally:
            _exit(self._code)


class _Guard:
    """Raises in the main thread when a step has had its time or a signal comes: once a step, and only in the step."""

    def __init__(self) -> None:
        self.stopped_by = 0
        self._in_step = False
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        for number in [getattr(signal, name) for name in (*_ENDING, "SIGALRM") if hasattr(signal, name)]:
            before = signal.getsignal(number)
            if before is None or (before == signal.SIG_IGN and number != _ALARM):  # as under nohup
                continue
            with suppress(ValueError):  # not the main thread
                signal.signal(number, self._handle)
                self._before[number] = before

    def restore(self) -> None:
        for number, handler in self._before.items():
            with suppress(Exception):
                signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number != _ALARM:
            self.stopped_by = number
        if self._in_step:
            self._in_step = False
            raise _Enough

    def attempt(self, step: EndTask) -> BaseException | None:
        """Does the step; returns what ended it."""
        try:
            try:
                self._in_step = True
                self._alarm(step.limit_s)
                step.work()
            finally:
                self._in_step = False
        except BaseException as error:
            return error
        finally:
            self._alarm(0)
        return None

    @staticmethod
    def _alarm(seconds: float) -> None:
        if hasattr(signal, "setitimer"):
            with suppress(ValueError):  # not the main thread
                signal.setitimer(signal.ITIMER_REAL, seconds)


def afterwards(
    code: int,
    steps: list[EndTask],
    quiet: bool,
    last_resort: LastResort | None = None,
    restore: bool = False,
) -> None:
    """Does the steps one after the other. Never raises; takes no longer than the limits of all steps, and a bit.

    After a signal the rest is left out. `code`: the exit code of the training. `quiet`: failures cost no line.
    `restore`: this is the training's own process, in which signals then are what they were before; otherwise they do
    nothing from here on.
    """
    guard = _Guard()
    try:
        last_resort = last_resort or LastResort()
        last_resort.begin(sum(step.limit_s for step in steps) + _GRACE_S, code)
        guard.begin()
        for step in steps:
            error = None if guard.stopped_by else guard.attempt(step)
            if error is not None and not quiet:
                _say(step, error, guard.stopped_by)
    except BaseException as error:  # the guard itself failed
        if not quiet:
            complain(f"the end of the run is not complete: {type(error).__name__}")
    finally:
        if last_resort is not None:
            last_resort.end()
        if restore:
            guard.restore()


def _say(step: EndTask, error: BaseException, stopped_by: int) -> None:
    with suppress(Exception):
        if stopped_by:
            why = f"stopped by {signal.Signals(stopped_by).name}"
        elif isinstance(error, _Enough):
            why = f"not done in {step.limit_s:g} s"
        else:
            why = str(error) if isinstance(error, DdlprofError) else f"{type(error).__name__}: {error}"
        directory = step.run()
        hint = "" if directory is None else f"; show it with: ddlprof report {shell_word(str(directory), path=True)}"
        complain(f"{step.failure}: {why}{hint}")
