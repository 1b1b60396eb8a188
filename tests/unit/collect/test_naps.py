"""The helper thread gets the interpreter's lock after each nap, whatever the training thread does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest

from ddlprof.base.real_time import time
from ddlprof.collect import core
from ddlprof.collect.process.frames import stack_of_thread

pytestmark = pytest.mark.skipif(not core.IN_C, reason="only the core in C asks for the lock")
NAP_S = 0.02


@contextmanager
def naps(look: bool = True) -> Iterator[list[float]]:
    """The ends of the naps of another thread."""
    ends, done = list[float](), threading.Event()

    def run() -> None:
        while not done.is_set():
            core.C.nap(int(NAP_S * 1e6), look)
            ends.append(time.perf_counter())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ends
    finally:
        done.set()
        core.C.wake()
        thread.join()


def compute(seconds: float) -> None:
    """Python code that lets the lock go more often than every 5 ms, and each time for a moment only."""
    end = time.perf_counter() + seconds
    with open(os.devnull, "wb", buffering=0) as file:
        while time.perf_counter() < end:
            for _ in range(20_000):
                pass
            file.write(b"x")


def test_a_thread_that_lets_the_lock_go_for_moments_does_not_keep_it() -> None:
    """Without being asked, it gave way to 3 of 80 naps on a machine with nothing else to do."""
    for _ in range(5):  # a busy machine may take the processor from either thread
        with naps() as ends:
            compute(1.0)
        if len(ends) > 1.0 / NAP_S * 0.3:
            return
    pytest.fail(f"{len(ends)} naps")


@pytest.mark.skipif(sys.version_info >= (3, 12) or sys.platform != "linux", reason="the interval cannot be set there")
def test_looks_fall_on_what_keeps_the_lock_as_well() -> None:
    """Python takes half of the time, and the other half is calls that let the lock go, on which all looks fell."""
    raw, text = bytes(4_000_000), json.dumps(list(range(20_000)))
    seen, taken = Counter[str](), Counter[str]()

    def decode() -> None:
        json.loads(text)

    def count() -> None:
        zlib.crc32(raw)

    def run() -> None:
        while not done.is_set():
            core.C.nap(int(NAP_S * 1e6), True)
            seen.update({frame.code.co_name for frame in stack_of_thread(main)} & {"decode", "count"})

    main, done = threading.main_thread().ident or 0, threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    end = time.perf_counter() + 2.0
    while time.perf_counter() < end:
        for work in (decode, count):
            begin = time.perf_counter()
            work()
            taken[work.__name__] += round(1e9 * (time.perf_counter() - begin))
    done.set()
    core.C.wake()
    thread.join()
    if sum(seen.values()) < 20:
        pytest.skip("the machine is too busy for looks")
    assert seen["decode"] / sum(seen.values()) > 0.3 * taken["decode"] / sum(taken.values())


@pytest.mark.skipif(sys.platform != "linux", reason="counts switches of a thread")
def test_a_long_call_that_keeps_the_lock_is_not_disturbed() -> None:
    """The thread that waits for it sleeps, but for the moment in which it asks; the interval is then the usual one."""
    import resource

    before, text = sys.getswitchinterval(), json.dumps(list(range(400_000)))
    switches: list[int] = []

    def run() -> None:
        while not done.is_set():
            first = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            core.C.nap(int(NAP_S * 1e6), True)
            switches.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - first)

    done = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    end = time.perf_counter() + 1.0
    while time.perf_counter() < end:
        json.loads(text)
        json.loads(text)
    done.set()
    core.C.wake()
    thread.join()
    assert len(switches) > 3
    assert median(switches) < 200  # every 20 us would be a thousand
    assert sys.getswitchinterval() == before
    if (child := os.fork()) == 0:
        os._exit(sys.getswitchinterval() != before)
    assert os.waitpid(child, 0)[1] == 0


def test_a_nap_ends_when_it_is_told_to() -> None:
    begin = time.perf_counter()
    core.C.wake()
    core.C.wake()
    core.C.nap(20_000_000, True)
    assert time.perf_counter() - begin < 10.0


def test_a_nap_after_an_ended_one_takes_its_time() -> None:
    core.C.wake()
    core.C.nap(1, True)
    begin = time.perf_counter()
    core.C.nap(30_000, True)
    assert time.perf_counter() - begin >= 0.03


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_signals_reach_the_script_while_it_hands_over_the_lock() -> None:
    came = list[int]()
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        with naps():
            compute(0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) > 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_naps_by_itself() -> None:
    with naps():
        compute(0.1)
        child = os.fork()
        if not child:
            try:
                with naps() as ends:
                    compute(0.5)
                os._exit(0 if ends else 3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
