"""What the training thread leaves for the helper thread."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import FirstSeen, IterationStart, Kind
from tests.unit.collect.cores import CORES, Core


@pytest.fixture(params=CORES, ids=lambda core: core.name)
def core(request: pytest.FixtureRequest) -> Core:
    found: Core = request.param
    return found


@pytest.fixture
def recorder(core: Core) -> Recorder:
    found: Recorder = core.recorder(clock=itertools.count(100).__next__)
    return found


def in_thread(function: object) -> list[object]:
    results: list[object] = []
    assert callable(function)
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results


def test_a_step_changes_hands_at_its_end(recorder: Recorder) -> None:
    assert recorder.emit(Kind.FORWARD_BEGIN, True, True, 4)
    assert not recorder.chunks
    assert recorder.recent() == [(Kind.FORWARD_BEGIN, 100, True, True, 4)]
    assert recorder.emit(Kind.OPTIMIZER_END, 0)
    assert list(recorder.chunks) == [
        [(Kind.FORWARD_BEGIN, 100, True, True, 4), (Kind.OPTIMIZER_END, 101, 0, None, None)]
    ]
    assert recorder.recent() == []
    assert recorder.boundaries == 1


def test_other_threads_record_nothing_but_in_backward(recorder: Recorder) -> None:
    assert in_thread(lambda: recorder.emit(Kind.FORWARD_BEGIN)) == [False]
    assert recorder.recent() == []
    assert in_thread(lambda: recorder.emit_in_backward(Kind.COMM_BEGIN)) == [True]
    assert len(recorder.recent()) == 1


def test_hooks_work_for_the_training_thread_while_it_is_recorded(recorder: Recorder) -> None:
    assert recorder.listens()
    assert in_thread(recorder.listens) == [False]
    recorder.active = False
    assert not recorder.listens()
    assert in_thread(recorder.listens) == [False]


def test_told_after_each_round_where_rounds_are_steps(recorder: Recorder) -> None:
    told: list[int] = []
    recorder.at_update = told.append
    recorder.rounds = IterationStart.LOADER
    for _ in range(3):
        recorder.emit(Kind.DATA_BEGIN, 0)
        recorder.emit(Kind.DATA_END, 0)
        recorder.emit(Kind.BACKWARD_BEGIN)
        recorder.emit(Kind.BACKWARD_END)
    assert told == [1, 2]
    assert recorder.boundaries == 2


def test_inactive(recorder: Recorder) -> None:
    recorder.active = False
    assert not recorder.emit(Kind.FORWARD_BEGIN)
    assert not recorder.emit_in_backward(Kind.FORWARD_BEGIN)
    assert recorder.recent() == []


def test_long_steps_change_hands_in_parts(recorder: Recorder) -> None:
    recorder.chunk_events = 10
    for _ in range(25):
        recorder.emit(Kind.FORWARD_BEGIN)
    assert [len(chunk) for chunk in recorder.chunks] == [10, 10]
    assert recorder.boundaries == 0
    assert len(recorder.take_rest()) == 5


def trained(recorder: Any, steps: int) -> None:
    for _ in range(steps):
        recorder.emit(Kind.FORWARD_BEGIN)
        recorder.emit(Kind.OPTIMIZER_END, 5, False, FirstSeen("SGD", 1) if not recorder.boundaries else None)


def test_memory_is_bounded_when_nobody_takes_the_events(recorder: Recorder) -> None:
    recorder.most_waiting = 6
    trained(recorder, 50)
    assert len(recorder.chunks) == 3
    assert recorder.boundaries == 50


def test_whole_steps_are_lost_until_half_is_taken_and_their_number_is_told(recorder: Recorder) -> None:
    recorder.most_waiting = 6
    trained(recorder, 10)
    recorder.taken = 2
    trained(recorder, 10)
    assert len(recorder.chunks) == 3  # not yet
    recorder.taken = 3
    trained(recorder, 2)
    *_, told, after = recorder.chunks
    ((kind, at, *lost),) = told
    assert (kind, lost) == (Kind.LOST, [{5: 18}, 21, {}])
    assert len(after) == 2
    assert at < after[0][1]
    assert recorder.handed == 6 + 1 + 2


def test_what_is_lost_does_not_end_within_a_step(recorder: Recorder) -> None:
    recorder.chunk_events, recorder.most_waiting = 10, 20
    for _ in range(50):
        recorder.emit(Kind.FORWARD_BEGIN)
    recorder.taken = 20
    for _ in range(50):
        recorder.emit(Kind.FORWARD_BEGIN)
    assert len(recorder.chunks) == 2
    recorder.emit(Kind.OPTIMIZER_END, 5, False, FirstSeen("SGD", 1))
    ((_, _, *lost),) = recorder.chunks[2]
    assert lost == [{5: 1}, 1, {5: FirstSeen("SGD", 1)}]


def test_what_is_lost_at_the_end_is_told_then(recorder: Recorder) -> None:
    recorder.most_waiting = 2
    trained(recorder, 4)
    recorder.emit(Kind.FORWARD_BEGIN)
    recorder.hand_over_rest()
    _, told, rest = recorder.chunks
    assert told[0][2] == {5: 3}
    assert [event[0] for event in rest] == [Kind.FORWARD_BEGIN]


def test_nothing_is_kept_once_nobody_takes_it_any_more(recorder: Recorder) -> None:
    trained(recorder, 3)
    recorder.close_queue()
    trained(recorder, 100)
    assert not recorder.chunks


def test_what_hooks_take(recorder: Recorder) -> None:
    assert (recorder.hook_ns, recorder.hook_steps) == (0, 0)
    moments = (square**2 for square in itertools.count())  # what is timed takes longer than asking
    recorder.cost_clock = moments.__next__
    for _ in range(64):
        for _ in range(5):
            recorder.emit(Kind.FORWARD_BEGIN)
        recorder.emit(Kind.OPTIMIZER_END)
    assert recorder.hook_steps == 64
    with_hooks = recorder.hook_ns
    assert with_hooks > recorder.timed_ns > 0
    calls, timed = recorder.calls, recorder.timed
    assert with_hooks == recorder.timed_ns * calls // timed + recorder.bare_hooks_ns * calls // timed // 2


def test_rare_work_is_charged_as_it_is(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is done after an update: it is not part of any event."""
    now = 0

    def work() -> str:
        nonlocal now
        now += 1000
        return "done"

    monkeypatch.setattr("ddlprof.base.real_time.time.thread_time_ns", lambda: now)
    assert recorder.charge(work) == "done"
    assert recorder.hook_ns == 1000
    recorder.cost_clock, recorder.widest_gap = lambda: now, 7
    recorder.at_update = lambda updates: recorder.charge(work)
    for _ in range(100):
        recorder.emit(Kind.OPTIMIZER_END)
    assert recorder.hook_ns == 101_000


def test_kinds_without_a_stamp(recorder: Recorder) -> None:
    recorder.unstamped = frozenset((Kind.EPOCH,))
    recorder.emit(Kind.EPOCH, 1)
    recorder.emit(Kind.DATA_BEGIN, 1)
    assert [event[1] for event in recorder.recent()] == [None, 100]


def test_told_after_each_update(recorder: Recorder) -> None:
    updates: list[int] = []
    recorder.at_update = updates.append
    for _ in range(3):
        recorder.emit(Kind.OPTIMIZER_END)
    assert updates == [1, 2, 3]


def test_a_clock_that_fails_ends_the_recording_and_nothing_else(core: Core) -> None:
    def broken() -> int:
        raise RuntimeError("device lost")

    recorder = core.recorder(clock=broken)
    assert not recorder.emit(Kind.FORWARD_BEGIN)
    assert not recorder.active
    assert recorder.failure == "RuntimeError: device lost"


def test_an_error_between_two_steps_reaches_nobody(recorder: Recorder) -> None:
    def broken(updates: int) -> None:
        raise RuntimeError("no room")

    recorder.at_update = broken
    assert not recorder.emit(Kind.OPTIMIZER_END, 0)
    assert recorder.failure == "RuntimeError: no room"


def test_asks_before_waiting_and_knows_what_the_step_holds(core: Core) -> None:
    recorder = core.recorder()
    asked: list[int] = []
    recorder.before_waiting = asked.append
    recorder.emit(Kind.FORWARD_BEGIN)
    recorder.emit(Kind.BACKWARD_BEGIN)
    assert asked == [Kind.BACKWARD_BEGIN]
    assert recorder.holds(Kind.BACKWARD_BEGIN)
    recorder.emit(Kind.OPTIMIZER_END)
    assert not recorder.holds(Kind.BACKWARD_BEGIN)
