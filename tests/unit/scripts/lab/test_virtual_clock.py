"""The virtual clock: who passes time, who has a turn at which moment, and what is put back."""

from __future__ import annotations

import threading

from ddlprof.base import real_time
from scripts.lab.virtual_clock import VirtualClock, installed

MS = 1_000_000


class Ticking:
    """A thread that waits for periods and notes the moments of its turns."""

    def __init__(self, clock: VirtualClock, seconds: float, turns: int | None = None) -> None:
        self.moments: list[int] = []
        self.stopped = threading.Event()
        self._clock, self._seconds, self._turns = clock, seconds, turns
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        while not self._clock._waiting:
            self.stopped.wait(0.001)

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._clock.wait(self.stopped, self._seconds):
            self.moments.append(self._clock.perf_counter_ns())
            if len(self.moments) == self._turns:
                return


def test_a_thread_that_waits_has_its_turn_at_its_moments() -> None:
    clock = VirtualClock(start_ns=0)
    ticking = Ticking(clock, 0.01)
    ticking.start()
    clock.work(25 * MS)
    clock.sleep(0.01)
    ticking.stop()
    assert ticking.moments == [10 * MS, 20 * MS, 30 * MS]
    assert clock.perf_counter_ns() == 35 * MS
    assert clock.thread_time_ns() == 25 * MS


def test_a_thread_that_has_ended_keeps_nobody_waiting() -> None:
    clock = VirtualClock(start_ns=0)
    ticking = Ticking(clock, 0.01, turns=1)
    ticking.start()
    clock.sleep(1)
    ticking.stop()
    assert ticking.moments == [10 * MS]


def test_a_thread_may_pass_time_in_its_turn() -> None:
    clock, moments = VirtualClock(start_ns=0), []

    class Sleeping(Ticking):
        def _run(self) -> None:
            self._clock.wait(self.stopped, 0.01)
            self._clock.sleep(0.02)
            moments.append(self._clock.perf_counter_ns())

    sleeping = Sleeping(clock, 0)
    sleeping.start()
    clock.sleep(0.015)
    sleeping.stop()
    assert moments == [30 * MS]
    assert clock.perf_counter_ns() == 30 * MS


def test_the_hosts_clocks_are_put_back() -> None:
    before = dict(vars(real_time.time))
    with installed() as clock:
        assert real_time.time.perf_counter_ns() == clock.perf_counter_ns()
        real_time.time.sleep(3600)
        assert clock.perf_counter() == 1000 + 3600
    assert dict(vars(real_time.time)) == before
