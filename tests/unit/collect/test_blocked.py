"""Blocked or busy: a sleep is told from a burn, whatever else the machine does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddlprof.collect.blocked import BlockedClock, Reading

linux = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's schedstat")


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleep_and_burn() -> None:
    time.sleep(0.1)
    burn(0.1)


def share(clock: BlockedClock, function: object) -> float:
    begin = clock.read()
    assert callable(function)
    function()
    end = clock.read()
    return clock.blocked_ns(begin, end) / (end.wall - begin.wall)


@linux
@pytest.mark.parametrize("whole_process", [True, False])
def test_sleep_and_burn(whole_process: bool) -> None:
    clock = BlockedClock(whole_process)
    assert clock.available
    assert share(clock, lambda: time.sleep(0.15)) > 0.8
    assert share(clock, lambda: burn(0.1)) < 0.2
    begin = clock.read()
    sleep_and_burn()
    end = clock.read()
    # Not shares of the wall time, which on a busy machine is longer than both.
    assert clock.blocked_ns(begin, end) > 0.08e9
    assert end.wall - begin.wall - clock.blocked_ns(begin, end) > 0.08e9


@linux
def test_waiting_for_a_processor_is_not_blocked() -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]  # fmt: skip
    try:
        time.sleep(0.2)
        assert share(BlockedClock(whole_process=True), lambda: burn(0.15)) < 0.25
    finally:
        for process in busy:
            process.kill()
            process.wait()


@linux
def test_work_of_children_and_of_other_threads_is_not_blocked() -> None:
    """Not a share of the wall time: how long a child that has ended waited for a processor nobody tells."""
    clock = BlockedClock(whole_process=True)
    child = [sys.executable, "-c", "import time\nwhile time.process_time() < .3: pass"]
    begin = clock.read()
    subprocess.run(child, check=True)
    end = clock.read()
    assert clock.blocked_ns(begin, end) < end.wall - begin.wall - 0.25e9
    with ThreadPoolExecutor(1) as pool:
        assert share(clock, lambda: pool.submit(burn, 0.15).result()) < 0.3


def test_openmp_threads_that_spin_are_no_work() -> None:
    clock = BlockedClock(whole_process=False)
    cores = os.cpu_count() or 1
    begin = Reading(0, 0, 0, 0, 0)
    spinning = Reading(100_000_000, 0, 5_000_000 * (cores - 1), 0, 0)
    assert clock.blocked_ns(begin, spinning) == 100_000_000
    working = Reading(100_000_000, 0, 300_000_000 * cores, 0, 0)
    assert clock.blocked_ns(begin, working) < 100_000_000


@pytest.mark.parametrize("end", [Reading(10, 99, 99, 0, 0), Reading(10, 0, 0, 99, 0), Reading(10, 0, 0, 0, -99)])
def test_between_0_and_the_wall_time(end: Reading) -> None:
    clock = BlockedClock(whole_process=True)
    assert 0 <= clock.blocked_ns(Reading(0, 0, 0, 0, 0), end) <= 10
