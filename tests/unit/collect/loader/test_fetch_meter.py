"""What a fetch read, and how long it was blocked and computed: a sleep is told from a burn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddlprof.collect.loader import fetch_meter
from ddlprof.collect.loader.fetch_meter import BlockedClock, CpuTimes, Fetch, FetchMeter

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


def blocked_ns(clock: BlockedClock, begin: CpuTimes, end: CpuTimes) -> int:
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


def test_threads_are_not_added_up() -> None:
    clock = BlockedClock(whole_process=True)
    begin = CpuTimes(0, 0, 0, 0, {1: 0, **dict.fromkeys(range(2, 10), 5)})
    # Eight threads sleep for 90 ms; then each needs a processor for 5, of which there is one.
    in_turns = CpuTimes(130, 40, 40, 0, {1: 0, **{thread: 5 + 5 * (thread - 1) for thread in range(2, 10)}})
    assert blocked_ns(clock, begin, in_turns) == 90
    one_waits = CpuTimes(130, 40, 40, 0, {1: 0, 2: 105})
    assert blocked_ns(clock, begin, one_waits) == 30
