"""When the stack of the training thread is sampled, and for which step a sample counts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlprof.collect.stacks import StackSampler, in_other
from ddlprof.model.events import Event, Kind
from ddlprof.model.places import CHECKPOINT, EVALUATION, FORWARD, Place
from ddlprof.model.records import Flag


def event(kind: Kind, a: object = None) -> Event:
    return (kind, 0, a, None, None)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], True),
        ([event(Kind.DATA_BEGIN)], False),
        ([event(Kind.DATA_BEGIN), event(Kind.DATA_END)], True),
        ([event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)], True),
        ([event(Kind.FORWARD_BEGIN, True), event(Kind.FORWARD_END)], False),
        ([event(Kind.BACKWARD_BEGIN)], False),
        ([event(Kind.OPTIMIZER_BEGIN)], False),
        ([event(Kind.CHECKPOINT_BEGIN)], True),
        ([event(Kind.COMM_BEGIN)], False),
    ],
)
def test_in_other(events: list[Event], expected: bool) -> None:
    assert in_other(events) is expected


@pytest.fixture
def waiting() -> Iterator[int]:
    """A thread that waits in the standard library, called from this file."""
    release, begun = threading.Event(), threading.Event()

    def outer() -> None:
        begun.set()
        release.wait()

    thread = threading.Thread(target=outer)
    thread.start()
    begun.wait()
    yield thread.ident or 0
    release.set()
    thread.join()


def test_the_innermost_line_of_the_users(waiting: int) -> None:
    sampler = StackSampler()
    for _ in range(3):
        sampler.sample(waiting, [], 1)
    sampler.sample(waiting, [event(Kind.BACKWARD_BEGIN)], 1)
    ((place, count),) = sampler.of_step(2, 0).items()
    assert count == 3
    file, rest = place.text.rsplit(":", 1)
    assert file == str(Path(__file__).relative_to(Path.cwd()))
    assert rest.endswith("outer")


def test_samples_belong_to_the_step_that_they_were_taken_in(waiting: int) -> None:
    sampler = StackSampler()
    for updates in (1, 1, 2, 5):
        sampler.sample(waiting, [], updates)
    assert [sum(sampler.of_step(n, 0).values()) for n in (1, 2, 3, 4, 5)] == [0, 2, 1, 0, 0]
    # What was sampled after the last update is of no step, and never asked for.


@pytest.mark.parametrize(
    ("events", "flags", "what"),
    [
        ([event(Kind.FORWARD_BEGIN, False)], 0, FORWARD),
        ([event(Kind.FORWARD_BEGIN, False)], Flag.EVALUATION, EVALUATION),
        ([event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)], Flag.EVALUATION, ""),
        ([event(Kind.CHECKPOINT_BEGIN)], 0, CHECKPOINT),
        ([event(Kind.CHECKPOINT_BEGIN), event(Kind.CHECKPOINT_END)], 0, ""),
        ([event(Kind.EPOCH), event(Kind.DATA_END)], 0, ""),
    ],
)
def test_what_the_hooks_know_of_a_line(waiting: int, events: list[Event], flags: int, what: str) -> None:
    sampler = StackSampler()
    sampler.sample(waiting, events, 1)
    ((place, _),) = sampler.of_step(2, flags).items()
    assert place.what == what


def test_a_thread_that_is_gone() -> None:
    sampler = StackSampler()
    sampler.sample(None, [], 0)
    sampler.sample(-5, [], 0)
    assert sampler.of_step(1, 0) == {}


def test_only_the_most_frequent_lines_are_kept(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    sampler = StackSampler()
    places = [Place(f"line {n}") for n in range(40) for _ in range(n)]
    monkeypatch.setattr(sampler.places, "find", lambda frame, update: places.pop())
    for _ in list(places):
        sampler.sample(waiting, [], 1)
    assert sampler.of_step(2, 0) == {Place(f"line {n}"): n for n in range(39, 19, -1)}


def test_the_stack_of_an_update_is_taken_now_and_then() -> None:
    sampler = StackSampler()
    taken = []
    for updates in range(1, 20):
        sampler._new_update = []
        sampler.at_update(updates)
        taken += [updates] if sampler._new_update else []
        assert not sampler._new_update or sampler._new_update[-1][0] is sys._getframe().f_code
    assert taken == [1, 2, 3, 4, 8, 16]
