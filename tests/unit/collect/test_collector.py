"""The pauses of the garbage collector are timed by its callbacks."""

from __future__ import annotations

import gc
import signal
from types import FrameType

import pytest

from ddlprof.base.real_time import time
from ddlprof.collect import core
from ddlprof.collect.collector import CollectorTimes

in_c = pytest.mark.skipif(not core.IN_C, reason="only the core in C times the collector")


@in_c
def test_collections_are_counted_until_the_callback_is_removed() -> None:
    times, before = CollectorTimes(), list(gc.callbacks)
    assert times.news(0) is None
    remove = times.watch()
    try:
        begin = time.perf_counter_ns()
        gc.collect()
        gc.collect(0)
        took = time.perf_counter_ns() - begin
    finally:
        remove()
    assert gc.callbacks == before
    gc.collect()
    pauses = times.news(7)
    assert pauses is not None
    assert pauses.time_ns == 7
    assert pauses.number >= 2
    assert pauses.full >= 1
    assert 0 < pauses.longest_ns <= pauses.total_ns <= took
    assert times.news(8) is None  # no news


def test_a_script_may_clear_the_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "callbacks", [])
    remove = CollectorTimes().watch()
    gc.callbacks.clear()
    remove()
    assert gc.callbacks == []


@in_c
def test_an_end_without_a_begin_is_no_pause() -> None:
    times, before = CollectorTimes(), len(gc.callbacks)
    remove = times.watch()
    try:
        gc.callbacks[before]("stop", {"generation": 2, "collected": 0, "uncollectable": 0})
        assert times.news(1) is None
    finally:
        remove()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_a_signal_during_a_collection_is_not_lost() -> None:
    """It is handled where the training goes on, as the collector drops what its callbacks raise: Ctrl-C ends it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def collect() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        for _ in range(200):  # nearly all of the time is that of collections
            gc.collect()

    gc.collect()  # what is garbage by now may run Python, where a signal is lost as well
    others = list(gc.callbacks)
    gc.callbacks.clear()  # of tests' libraries
    remove, before = CollectorTimes().watch(), signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                collect()
    finally:
        signal.signal(signal.SIGALRM, before)
        remove()
        gc.callbacks[:] = others
