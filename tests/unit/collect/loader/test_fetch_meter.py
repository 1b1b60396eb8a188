"""What a fetch read, and how long it was blocked and computed: a sleep is told from a burn."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from ddlprof.collect.loader import fetch_meter
from ddlprof.collect.loader.fetch_meter import BlockedClock, ClockReading, Fetch, FetchMeter

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's schedstat")


def fetch(meter: FetchMeter, file: Path) -> Fetch:
    begin = meter.begin()
    time.sleep(0.02)
    file.read_bytes()
    return meter.fetch(begin, meter.end())


@pytest.mark.parametrize("whole_process", [True, False])
def test_a_fetch(whole_process: bool, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    found = fetch(FetchMeter(whole_process), tmp_path / "data")
    assert found.end - found.begin >= found.blocked >= 0.015e9
    assert found.cpu > 0
    assert found.asked == 100_000  # what the meter reads itself is no part of it


def test_without_counters_the_times_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(whole_process: bool) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(fetch_meter, "IoCounters", refuse)
    (tmp_path / "data").touch()
    found = fetch(FetchMeter(whole_process=True), tmp_path / "data")
    assert found.blocked > 0
    assert (found.asked, found.storage) == (None, None)


linux = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's schedstat")


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def blocked_ns(clock: BlockedClock, begin: ClockReading, end: ClockReading) -> int:
    blocked, _ = clock.blocked_and_cpu_ns(begin, end)
    return blocked


def sleep_and_burn() -> None:
    time.sleep(0.1)
    burn(0.1)


def share(clock: BlockedClock, function: object) -> float:
    begin = clock.reading(clock.read())
    assert callable(function)
    function()
    end = clock.reading(clock.read())
    return blocked_ns(clock, begin, end) / (end.wall - begin.wall)


@linux
@pytest.mark.parametrize("whole_process", [True, False])
def test_sleep_and_burn(whole_process: bool) -> None:
    clock = BlockedClock(whole_process)
    assert clock.available
    assert share(clock, lambda: time.sleep(0.15)) > 0.8
    assert share(clock, lambda: burn(0.1)) < 0.2
    begin = clock.reading(clock.read())
    sleep_and_burn()
    end = clock.reading(clock.read())
    # Not shares of the wall time, which on a busy machine is longer than both.
    assert blocked_ns(clock, begin, end) > 0.08e9
    assert end.wall - begin.wall - blocked_ns(clock, begin, end) > 0.08e9


@linux
@pytest.mark.parametrize("whole_process", [True, False])
def test_processor_time(whole_process: bool) -> None:
    clock = BlockedClock(whole_process)
    begin, thread_begin = clock.reading(clock.read()), time.thread_time_ns()
    sleep_and_burn()
    end, thread_end = clock.reading(clock.read()), time.thread_time_ns()
    _, cpu = clock.blocked_and_cpu_ns(begin, end)
    assert 0.1e9 <= cpu < thread_end - thread_begin + 0.05e9  # other threads of the test run may do a little


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
    begin = clock.reading(clock.read())
    subprocess.run(child, check=True)
    end = clock.reading(clock.read())
    assert blocked_ns(clock, begin, end) < end.wall - begin.wall - 0.25e9
    with ThreadPoolExecutor(1) as pool:
        assert share(clock, lambda: pool.submit(burn, 0.15).result()) < 0.3


@linux
def test_threads_that_wait_together_for_a_processor() -> None:
    """A pool of downloads: all are blocked for most of the time, then there are more of them than processors."""
    threads, sleep_s, work_s = 16, 0.15, 0.003
    block = bytes(1 << 16)
    started = Barrier(threads)

    def download() -> None:
        started.wait()
        time.sleep(sleep_s)
        end = time.thread_time() + work_s
        while time.thread_time() < end:
            hashlib.sha256(block)  # without the interpreter's lock

    clock = BlockedClock(whole_process=True)
    with ThreadPoolExecutor(threads) as pool:
        begin = clock.reading(clock.read())
        for work in [pool.submit(download) for _ in range(threads)]:
            work.result()
        end = clock.reading(clock.read())
    assert blocked_ns(clock, begin, end) > 0.08e9


def test_threads_are_not_added_up() -> None:
    clock = BlockedClock(whole_process=True)
    begin = ClockReading(0, 0, 0, 0, {1: 0, **dict.fromkeys(range(2, 10), 5)})
    # Eight threads sleep for 90 ms; then each needs a processor for 5, of which there is one.
    in_turns = ClockReading(130, 40, 40, 0, {1: 0, **{thread: 5 + 5 * (thread - 1) for thread in range(2, 10)}})
    assert blocked_ns(clock, begin, in_turns) == 90
    one_waits = ClockReading(130, 40, 40, 0, {1: 0, 2: 105})
    assert blocked_ns(clock, begin, one_waits) == 30


def test_threads_that_come_and_go() -> None:
    clock = BlockedClock(whole_process=True)
    assert (
        blocked_ns(clock, ClockReading(0, 0, 0, 0, {1: 0, 2: 10**6}), ClockReading(100, 20, 20, 0, {1: 30, 3: 40}))
        == 60
    )


def test_openmp_threads_that_spin_are_no_work() -> None:
    clock = BlockedClock(whole_process=False)
    cores = os.cpu_count() or 1
    begin = ClockReading(0, 0, 0, 0, {})
    spinning = ClockReading(100_000_000, 0, 5_000_000 * (cores - 1), 0, {})
    assert blocked_ns(clock, begin, spinning) == 100_000_000
    working = ClockReading(100_000_000, 0, 300_000_000 * cores, 0, {})
    assert blocked_ns(clock, begin, working) < 100_000_000


@pytest.mark.parametrize(
    "end", [ClockReading(10, 99, 99, 0, {}), ClockReading(10, 0, 0, 99, {}), ClockReading(10, 0, 0, 0, {1: 99}),
            ClockReading(10, 0, 0, 0, {1: -99})]
)  # fmt: skip
def test_between_0_and_the_wall_time(end: ClockReading) -> None:
    clock = BlockedClock(whole_process=True)
    assert 0 <= blocked_ns(clock, ClockReading(0, 0, 0, 0, {}), end) <= 10
