"""What streams pass on to each other, by itself."""

from __future__ import annotations

from ddlprof.collect.hooks.streams import COMM, COPY, VectorClock

MAIN, SIDE, OTHER = (0, 0), (0, 1), (0, 2)


def waits(streams: VectorClock, waiting: tuple[int, int], awaited: tuple[int, int]) -> set[str]:
    newer = streams.newer(waiting, streams.on(awaited))
    streams.wait(waiting, newer)
    return {what for _, what in newer}


def test_a_wait_is_for_what_was_issued_since_the_last() -> None:
    streams = VectorClock()
    assert waits(streams, MAIN, SIDE) == set()
    streams.issue(SIDE, (SIDE, COMM))
    streams.issue(SIDE, (SIDE, COPY))
    assert waits(streams, MAIN, SIDE) == {COMM, COPY}
    assert waits(streams, MAIN, SIDE) == set()
    streams.issue(SIDE, (SIDE, COPY))
    assert waits(streams, MAIN, SIDE) == {COPY}


def test_it_is_passed_on_but_not_back() -> None:
    streams = VectorClock()
    streams.issue(SIDE, (SIDE, COMM))
    assert waits(streams, OTHER, SIDE) == {COMM}
    assert waits(streams, MAIN, OTHER) == {COMM}
    assert waits(streams, MAIN, SIDE) == set()
    assert waits(streams, OTHER, MAIN) == set()


def test_an_event_holds_what_was_there_when_it_was_recorded() -> None:
    streams = VectorClock()
    streams.issue(SIDE, (SIDE, COMM), "first")
    event = streams.on(SIDE)
    streams.issue(SIDE, (SIDE, COMM), "second")
    newer = streams.newer(MAIN, event)
    streams.wait(MAIN, newer)
    assert streams.take_items(newer) == ("first",)
    assert streams.take_items(streams.newer(MAIN, streams.everything())) == ("second",)
