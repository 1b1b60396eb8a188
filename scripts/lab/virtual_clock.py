"""A clock for tests that passes no time of its own: whoever works or waits says how long that takes, in nanoseconds.

`installed()` gives it to the recorder of this process in place of the host's clocks. A thread that waits for a moment,
as the helper thread does, has its turn when the time of the others reaches that moment, and they wait for its end:
what happens is the same in every run, on any machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ddlprof.base import real_time
from ddlprof.collect import core
from ddlprof.collect.process.clocks import ThreadClock

_LOOK_S = 0.001
"""Nobody tells a condition that an event was set, or that a thread has ended."""


@dataclass(eq=False)
class _Waiting:
    """A thread that waits until `due_ns`, or has its turn."""

    due_ns: int
    has_turn: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)


class VirtualClock:
    """The time of all threads, and the processor time of each."""

    def __init__(self, start_ns: int = 1_000_000_000_000) -> None:
        self._ns = start_ns
        self._unix_ns = 1_700_000_000_000_000_000 - start_ns
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._processor = threading.local()
        self._process_ns = 0

    # -- whoever passes time ---------------------------------------------------------------------------------------

    def wait_until(self, moment_ns: int) -> None:
        """Nothing happens in the calling thread before that moment."""
        with self._changed:
            while (next_one := self._next(moment_ns)) is not None:
                self._ns = max(self._ns, next_one.due_ns)
                next_one.has_turn = True
                self._changed.notify_all()
                while next_one.has_turn and next_one.thread.is_alive():
                    self._changed.wait(_LOOK_S)
                if not next_one.thread.is_alive():
                    self._forget(next_one)
            self._ns = max(self._ns, moment_ns)

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`."""
        self.wait_until(self._ns + round(seconds * 1e9))

    def work(self, ns: int) -> None:
        """The calling thread computes for so long."""
        self._processor.ns = self.thread_time_ns() + ns
        self._process_ns += ns
        self.wait_until(self._ns + ns)

    def hold(self, ns: int) -> None:
        """The same, without the interpreter's lock for anybody else."""
        self.work(ns)

    def await_thread(self) -> None:
        """Returns as soon as another thread waits for a moment, which it does at the same time in every run then."""
        with self._changed:
            while not self._waiting:
                self._changed.wait(_LOOK_S)

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """As `event.wait`, in a thread that passes no time of its own."""
        if seconds is None:
            return event.wait()
        with self._changed:
            mine = _Waiting(self._ns + round(seconds * 1e9))
            for turn in [each for each in self._waiting if each.thread is mine.thread]:
                self._forget(turn)  # its turn is over
            self._waiting.append(mine)
            self._changed.notify_all()
            while not mine.has_turn:
                if event.is_set():
                    self._forget(mine)
                    return True
                self._changed.wait(_LOOK_S)
        return event.is_set()

    def _next(self, moment_ns: int) -> _Waiting | None:
        this = threading.current_thread()
        due = [each for each in self._waiting if each.due_ns <= moment_ns and each.thread is not this]
        return min((each for each in due if not each.has_turn), key=lambda each: each.due_ns, default=None)

    def _forget(self, one: _Waiting) -> None:
        one.has_turn = False
        self._waiting.remove(one)

    # -- whoever asks ----------------------------------------------------------------------------------------------

    def perf_counter_ns(self) -> int:
        """As `time.perf_counter_ns`."""
        return self._ns

    def perf_counter(self) -> float:
        """As `time.perf_counter`."""
        return self._ns / 1e9

    def time_ns(self) -> int:
        """As `time.time_ns`."""
        return self._ns + self._unix_ns

    def thread_time_ns(self) -> int:
        """As `time.thread_time_ns`."""
        ns: int = getattr(self._processor, "ns", 0)
        return ns

    def process_time_ns(self) -> int:
        """As `time.process_time_ns`."""
        return self._process_ns


class HostClock:
    """The clock of the host with the same methods: time passes by itself, and who waits sleeps."""

    perf_counter_ns = staticmethod(time.perf_counter_ns)

    def wait_until(self, moment_ns: int) -> None:
        """Sleeps until then."""
        left = moment_ns - time.perf_counter_ns()
        if left > 0:
            time.sleep(left / 1e9)

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`."""
        time.sleep(seconds)

    def work(self, ns: int) -> None:
        """Something that takes so long besides what it does."""
        if ns:
            self.wait_until(time.perf_counter_ns() + ns)

    def hold(self, ns: int) -> None:
        """Computes for so long: the interpreter's lock changes hands after milliseconds only."""
        until = time.perf_counter_ns() + ns
        while time.perf_counter_ns() < until:
            pass


def _nap(clock: VirtualClock, woken: threading.Event, us: int, look: bool) -> None:
    """As the core's, which waits for the host's time."""
    clock.wait(woken, us / 1e6)
    woken.clear()


@contextlib.contextmanager
def installed(clock: VirtualClock | None = None) -> Iterator[VirtualClock]:
    """For sessions begun in here this clock is the host's, and no thread ever waits for a processor."""
    clock = clock or VirtualClock()
    replaced: list[tuple[Any, str, Any]] = []
    names = ("perf_counter", "perf_counter_ns", "process_time_ns", "sleep", "thread_time_ns", "time_ns", "wait")
    changes: list[tuple[Any, str, Any]] = [(real_time.time, name, staticmethod(getattr(clock, name))) for name in names]
    if core.C is not None:
        woken = threading.Event()
        changes += [(core.C, "nap", partial(_nap, clock, woken)), (core.C, "wake", woken.set)]
    for owner, name, value in (*changes, (ThreadClock, "delay_ns", staticmethod(lambda schedstat: 0))):
        replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)
    try:
        yield clock
    finally:
        for owner, name, value in replaced:
            setattr(owner, name, value)
