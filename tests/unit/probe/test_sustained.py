"""How often a second something is done, at first and in the long run."""

from __future__ import annotations

import time

import pytest

from ddlprof.probe.sustained import sustained


class Clock:
    """A clock that goes on only while something is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def test_the_long_run_counts_and_not_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that slows down to half its speed after 0.2 s."""
    clock = Clock(monkeypatch)

    def run() -> None:
        clock.now += 0.001 if clock.now < 0.2 else 0.002

    rate = sustained(run, lambda: None, 3.0)
    assert rate.per_s == pytest.approx(500, rel=0.01)
    assert rate.first_per_s == pytest.approx(1000, rel=0.01)
    assert 1400 < rate.calls < 1700


def test_what_takes_longer_than_the_time_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def run() -> None:
        clock.now += 5.0

    rate = sustained(run, lambda: None, 0.1)
    assert rate.per_s == pytest.approx(0.2)
    assert rate.calls == 2


def test_a_device_that_only_notes_what_is_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does: calls take no time, the wait takes all of it."""
    clock, asked = Clock(monkeypatch), [0]

    def run() -> None:
        asked[0] += 1

    def finish() -> None:
        clock.now += 1e-5 * asked[0]
        asked[0] = 0

    assert sustained(run, finish, 1.0).per_s == pytest.approx(1e5)
