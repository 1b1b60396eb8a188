"""Where events are lost, whole steps are: all others are what they are without the gap, down to their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.events import Event, IterationStart, Kind
from ddlprof.model.records import StepRow
from tests.unit.collect.conftest import LARGE, SMALL, Thread

STEPS = 14
MARKS = (Kind.OPTIMIZER_END, Kind.ITERATION)


def plain(thread: Thread, number: int) -> None:
    """With everything that a step may have, in changing lengths."""
    thread.zero_grad(1)
    thread.batch(10 + number)
    with thread.during(Kind.H2D_BEGIN, Kind.H2D_END):
        thread.spend(2)
    thread.forward(20)
    thread.backward(30 + number)
    with thread.during(Kind.COMM_BEGIN, Kind.COMM_END):
        thread.spend(3)
    thread.update(10)
    if number % 3 == 0:
        with thread.during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END):
            thread.spend(5)
    if number % 4 == 0:
        thread.batch(4, loader=1)
        thread.forward(7, grad=False, training=False)


def two_optimizers(thread: Thread, number: int) -> None:
    """The critic is updated twice before the generator is."""
    for _ in range(2):
        thread.batch(10)
        thread.forward(20)
        thread.backward(30)
        thread.update(5, optimizer=1, size=SMALL)
    thread.forward(20 + number)
    thread.backward(30)
    thread.update(10, optimizer=0, size=LARGE)


def rounds(thread: Thread, number: int) -> None:
    """No optimizer is seen."""
    if number:
        thread.emit(Kind.ITERATION, IterationStart.LOADER)
    thread.batch(10 + number)
    thread.forward(20)
    thread.backward(30)


def run(events: list[Event]) -> tuple[list[tuple[int, StepRow]], StepAssembler]:
    """The steps that end, each with the index of the event that ended it."""
    assembler = StepAssembler(0)
    assembler.boundaries.optimizer_exists = lambda: False
    found = []
    for number, event in enumerate(events):
        found += [(number, step.row) for step in assembler.feed(event)]
    return found, assembler


def told(events: list[Event], begin: int, end: int) -> Event:
    """What the recorder says of the events in between."""
    lost, first_seen, marks = Counter[int | None](), {}, 0
    for number, (kind, _, a, _, c) in enumerate(events[:end]):
        marks += kind in MARKS
        if number >= begin and kind == Kind.OPTIMIZER_END:
            lost[a] += 1
            first_seen.update({a: c} if c else {})
        elif number >= begin and kind == Kind.ITERATION:
            lost[None] += 1
    return (Kind.LOST, events[end - 1][1], lost, marks, first_seen)


@pytest.mark.parametrize("loop", [plain, two_optimizers, rounds])
def test_no_other_step_changes_wherever_events_are_lost(loop: Callable[[Thread, int], None]) -> None:
    thread = Thread()
    for number in range(2 * STEPS):
        loop(thread, number)
    events = thread.events
    settled = next(n for n in range(len(events)) if run(events[: n + 1])[1].boundaries.settled) + 1
    whole, _ = run(events)
    marks = [n + 1 for n, event in enumerate(events) if n >= settled and event[0] in MARKS]
    for begin in range(settled, marks[-1], 3):
        for end in [each for each in marks if each > begin][:12:3]:
            left, assembler = run([*events[:begin], told(events, begin, end), *events[end:]])
            before = [row for number, row in whole if number < begin]
            after = [row for number, row in whole if number >= end]
            assert [row for _, row in left] == [*before, *after[1:]]  # the first is torn
            if after:
                assert assembler.lost_steps == len(whole) - len(left)
            assert assembler._marks == sum(event[0] in MARKS for event in events)


def test_a_loop_whose_beginning_is_lost_has_the_steps_after_it() -> None:
    thread = Thread()
    for number in range(STEPS):
        plain(thread, number)
    whole = thread.rows
    end = 1 + [n for n, event in enumerate(thread.events) if event[0] == Kind.OPTIMIZER_END][3]
    assembler = StepAssembler(0)
    events = [told(thread.events, 0, end), *thread.events[end:]]
    steps = [step.row for event in events for step in assembler.feed(event)] + [s.row for s in assembler.finish()]
    assert [row.step for row in steps] == list(range(5, STEPS))
    assert steps == whole[5:]
    assert assembler.boundaries.names == {0: "SGD"}
    assert assembler.lost_steps == 5
