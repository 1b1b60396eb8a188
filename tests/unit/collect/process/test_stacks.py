"""When the stack of the training thread is sampled, and for which step a sample counts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlprof.collect.process.stacks import StackSampler, Where, where
from ddlprof.collect.steps.no_grad import NoGradCalls
from ddlprof.model.events import Event, Kind, Purpose
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import CHECKPOINT, EVALUATION, FORWARD, ROLLOUT, SourceLocation


def event(kind: Kind, a: object = None) -> Event:
    return (kind, 0, a, None, None)


def frozen(purpose: Purpose) -> Event:
    """A forward begins that is for the same as those before it."""
    return (Kind.FORWARD_BEGIN, 0, False, True, lambda: NoGradCalls(purpose=purpose))


EVALUATED = [event(Kind.FORWARD_BEGIN, False), event(Kind.FORWARD_END)]
TRAINED = [event(Kind.FORWARD_BEGIN, True), event(Kind.FORWARD_END)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Where.OTHER),
        ([event(Kind.DATA_BEGIN)], Where.DATA),
        ([event(Kind.DATA_BEGIN), event(Kind.EPOCH)], Where.DATA),
        ([event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.OTHER),
        (EVALUATED, Where.OTHER),
        (EVALUATED[:1], Where.OTHER),
        ([frozen(Purpose.ROLLOUT)], Where.OTHER),
        ([frozen(Purpose.TRAINING)], Where.ELSEWHERE),
        ([frozen(Purpose.TRAINING), event(Kind.FORWARD_END)], Where.OTHER),
        (TRAINED[:1], Where.ELSEWHERE),
        (TRAINED, Where.GAP),
        ([*TRAINED, event(Kind.DATA_BEGIN)], Where.DATA),
        ([*TRAINED, event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.GAP),
        ([*TRAINED, *EVALUATED[:1]], Where.ELSEWHERE),
        ([*TRAINED, event(Kind.ITERATION), event(Kind.DATA_BEGIN), event(Kind.DATA_END)], Where.GAP),
        ([event(Kind.BACKWARD_BEGIN)], Where.ELSEWHERE),
        ([event(Kind.BACKWARD_BEGIN), event(Kind.BACKWARD_END)], Where.GAP),
        ([event(Kind.OPTIMIZER_BEGIN)], Where.ELSEWHERE),
        ([event(Kind.CHECKPOINT_BEGIN)], Where.OTHER),
        ([event(Kind.COMM_BEGIN)], Where.ELSEWHERE),
    ],
)
def test_what_a_moment_belongs_to(events: list[Event], expected: Where) -> None:
    assert where(events) is expected


def test_a_line_between_forward_and_update_counts_unless_torch_is_at_work(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = StackSampler()
    sampler.sample(waiting, TRAINED, 1)
    monkeypatch.setattr(sampler.places, "in_torch", lambda stack: True)
    sampler.sample(waiting, TRAINED, 1)
    sampler.sample(waiting, [], 1)
    assert sum(sampler.of_step(2, 0).values()) == 2


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

    # What was sampled after the last update is of no step, and never asked for.


@pytest.mark.parametrize(
    ("events", "flags", "what"),
    [
        ([event(Kind.FORWARD_BEGIN, False)], 0, FORWARD),
        ([event(Kind.FORWARD_BEGIN, False)], Flag.EVALUATION, EVALUATION),
        ([frozen(Purpose.EVALUATION)], 0, EVALUATION),
        ([frozen(Purpose.ROLLOUT)], Flag.EVALUATION, ROLLOUT),
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
    places = [SourceLocation(f"line {n}") for n in range(40) for _ in range(n)]
    monkeypatch.setattr(sampler.places, "find", lambda stack, update: places.pop())
    for _ in list(places):
        sampler.sample(waiting, [], 1)
    assert sampler.of_step(2, 0) == {SourceLocation(f"line {n}"): n for n in range(39, 19, -1)}


def test_the_stack_of_an_update_is_that_of_who_tells_of_it() -> None:
    sampler = StackSampler()
    sampler.at_update()
    assert sampler._new_update[-1][0] is sys._getframe().f_code
