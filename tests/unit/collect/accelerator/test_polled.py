"""Events that are timed by asking: in order, by the host's clock, by a thread that ends when there is nothing to do."""

from __future__ import annotations

import threading

import pytest

from ddlprof.base import real_time
from ddlprof.collect.accelerator import polled
from ddlprof.collect.accelerator.polled import EventPoller


class Recorded:
    """An event of a device, which passes it when the test says so."""

    def __init__(self) -> None:
        self.passed = False
        self.asked = 0

    def record(self) -> None:
        self.passed = False

    def query(self) -> bool:
        self.asked += 1
        return self.passed


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventPoller, "_poll", lambda watch: None)


@pytest.mark.usefixtures("no_thread")
def test_the_times_are_those_at_which_they_were_seen_to_be_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(real_time.time, "perf_counter_ns", lambda: now)
    watch = EventPoller(Recorded)
    first, second = watch.make_event(), watch.make_event()
    first.record()
    second.record()
    now, first.event.passed = 5_000_000, True
    assert watch.look()
    now, second.event.passed = 12_000_000, True
    assert not second.query()
    assert watch.look()
    assert second.query()
    assert first.elapsed_time(second) == 7
    assert not watch.look()


@pytest.mark.usefixtures("no_thread")
def test_an_event_is_not_asked_before_those_in_front_of_it() -> None:
    watch = EventPoller(Recorded)
    first, second = watch.make_event(), watch.make_event()
    first.record()
    second.record()
    second.event.passed = True
    watch.look()
    assert (first.event.asked, second.event.asked) == (1, 0)
    with pytest.raises(RuntimeError, match="not yet"):
        first.elapsed_time(second)


@pytest.mark.usefixtures("no_thread")
def test_an_event_that_is_recorded_again_is_not_passed() -> None:
    watch = EventPoller(Recorded)
    event = watch.make_event()
    event.record()
    event.event.passed = True
    watch.look()
    assert event.query()
    event.record()
    assert not event.query()


def test_a_thread_asks_and_ends_when_idle_and_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled, "_MOST_IDLE_POLLS", 3)
    watch, threads = EventPoller(Recorded), set()
    for _ in range(3):
        event = watch.make_event()
        event.record()
        threads.add(watch._thread)
        event.event.passed = True
        event.synchronize()
        thread = watch._thread
        if thread is not None:
            thread.join(10)
        assert watch._thread is None
    assert len(threads) == 3
    assert "ddlprof-device" not in {thread.name for thread in threading.enumerate()}
