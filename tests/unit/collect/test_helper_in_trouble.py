"""The helper thread that fails, is stuck or gets no time: one thread takes events, memory is bounded, loss is said."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ddlprof.collect import helper as module
from ddlprof.model.events import Kind
from tests.unit.collect.test_helper import Rig, collective
from tests.unit.writing.test_writer import lines_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_bug_of_ours_ends_the_recording_not_the_training(rig: Rig) -> None:
    rig.train(2)
    rig.recorder.chunks.append([("no event",)])  # type: ignore[list-item]
    rig.train(2)
    rig.helper.stop()
    assert not rig.recorder.active
    assert not rig.recorder.emit(Kind.FORWARD_BEGIN)
    assert [row.step for row in rig.written()] == [0, 1]
    (note,) = [record for kind, record in lines_of(rig.directory) if kind == "n"]
    assert note.source == "helper"
    assert note.message.startswith("stopped recording: ValueError")


def test_after_a_bug_of_ours_nothing_is_kept(rig: Rig) -> None:
    held = collective(None)
    references = sys.getrefcount(held)
    rig.train(1, held)
    rig.recorder.chunk_events = 1
    rig.recorder.emit(Kind.COLLECTIVE, held)  # of a step that is not over
    rig.helper._drain()
    assert rig.helper._pending
    rig.train(1, held)
    rig.helper.end_recording = lambda: None  # the training thread has not come to it yet
    rig.helper._fail(RuntimeError())
    rig.train(1000, held)
    rig.steps.clear()
    assert sys.getrefcount(held) == references


# -- a thread that comes to nothing -----------------------------------------------------------------------------------


class Stuck:
    """Holds the thread up at one event, until it is let go."""

    def __init__(self, rig: Rig, at: int) -> None:
        self.reached, self.may_go = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self._feed, self._left = rig.helper.assembler.feed, at
        rig.helper.assembler.feed = self.feed  # type: ignore[method-assign]

    def feed(self, event: Any) -> Any:
        self.threads.add(threading.get_ident())
        self._left -= 1
        if not self._left:
            self.reached.set()
            assert self.may_go.wait(60)
        return self._feed(event)


def test_one_thread_alone_takes_events_also_at_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_S", 0.05, raising=False)
    stuck = Stuck(rig, at=100)
    rig.helper.start()
    rig.train(400)
    assert stuck.reached.wait(30)
    assert not rig.helper.stop()
    assert not rig.helper.stop()
    assert stuck.threads == {rig.helper._thread.ident}
    assert rig.helper.where().startswith("threading.py:")
    stuck.may_go.set()
    rig.helper._thread.join(30)
    assert rig.helper.stop()
    assert stuck.threads == {rig.helper._thread.ident}
    assert [record.step for kind, record in lines_of(rig.directory) if kind == "s"] == list(range(400))


def test_a_thread_that_gets_on_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, up to a limit."""
    joined: list[float | None] = []
    rig.train(5)
    rig.helper.start()
    rig.helper._stop.set()
    rig.helper._thread.join(30)

    class Slow:
        ident = 1

        def is_alive(self) -> bool:
            return True

        def join(self, timeout: float | None = None) -> None:
            joined.append(timeout)
            rig.recorder.taken += len(joined) < 4

    rig.helper._thread = Slow()  # type: ignore[assignment]
    assert not rig.helper.stop()
    assert joined == [module._STUCK_S] * 4
    joined.clear()
    monkeypatch.setattr(module, "_END_S", -1.0)
    assert not rig.helper.stop()
    assert joined == []


def test_where_there_is_no_room_whole_steps_are_lost_and_said(rig: Rig) -> None:
    rig.recorder.most_waiting = 40  # ten steps
    rig.train(30)
    rig.helper._drain()
    rig.train(10)
    rig.helper.stop()
    rows = rig.written()
    assert [row.step for row in rows] == [*range(10), *range(32, 40)]
    assert {row.samples for row in rows} == {4}
    (lost,) = rig.written("u")
    assert (lost.many, lost.count) == ("steps were not recorded", 22)


def test_samples_of_lost_steps_are_of_no_other(rig: Rig) -> None:
    rig.recorder.most_waiting = 8
    rig.train(3)
    rig.helper.stacks.sample(threading.get_ident(), rig.recorder.recent(), rig.recorder.marks)
    rig.train(1)
    rig.helper._drain()
    rig.train(4)
    rig.helper.stop()
    assert [row.step for row in rig.written()] == [0, 1, 6]
    assert rig.written("q") == []
