"""What the training thread leaves for the helper thread."""

from __future__ import annotations

import itertools
import threading

import pytest

from ddlprof.collect import recorder as module
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(clock=itertools.count(100).__next__)


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


def test_inactive(recorder: Recorder) -> None:
    recorder.active = False
    assert not recorder.emit(Kind.FORWARD_BEGIN)
    assert not recorder.emit_in_backward(Kind.FORWARD_BEGIN)
    assert recorder.recent() == []


def test_long_steps_change_hands_in_parts(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_EVENTS", 10)
    for _ in range(25):
        recorder.emit(Kind.FORWARD_BEGIN)
    assert [len(chunk) for chunk in recorder.chunks] == [10, 10]
    assert recorder.boundaries == 0
    assert len(recorder.take_rest()) == 5


def test_memory_is_bounded_when_nobody_takes_the_events(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CHUNKS", 3)
    for _ in range(5):
        recorder.emit(Kind.FORWARD_BEGIN)
        recorder.emit(Kind.OPTIMIZER_END)
    assert len(recorder.chunks) == 3
    assert recorder.lost == 4
    assert recorder.boundaries == 5


def test_some_steps_are_timed(recorder: Recorder) -> None:
    for _ in range(64):
        for _ in range(5):
            recorder.emit(Kind.FORWARD_BEGIN)
        recorder.emit(Kind.OPTIMIZER_END)
    assert recorder.hook_steps == 3
    assert recorder.hook_ns > 0


def test_work_of_hooks_is_charged_in_timed_steps_only(recorder: Recorder) -> None:
    recorder.charge(1000)
    assert recorder.hook_ns == 0
    for _ in range(module._TIMED_EVERY):
        recorder.emit(Kind.OPTIMIZER_END)
    recorder.charge(1000)
    assert recorder.hook_ns == 1000


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


def test_asks_before_waiting_and_knows_what_the_step_holds() -> None:
    recorder = Recorder()
    asked: list[int] = []
    recorder.before_waiting = asked.append
    recorder.emit(Kind.FORWARD_BEGIN)
    recorder.emit(Kind.BACKWARD_BEGIN)
    assert asked == [Kind.BACKWARD_BEGIN]
    assert recorder.holds(Kind.BACKWARD_BEGIN)
    recorder.emit(Kind.OPTIMIZER_END)
    assert not recorder.holds(Kind.BACKWARD_BEGIN)
