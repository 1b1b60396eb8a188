"""The helper thread: from the recorder's chunks to the writer's records, and what happens when something breaks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.base import real_time
from ddlprof.collect import helper as module
from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.collect.helper import Helper
from ddlprof.collect.process.stack_schedule import FIRST_LOOK_S, FIRST_LOOKS
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.health import HealthReading
from ddlprof.model.records import ContextRow, LoaderCost, Note, Overhead
from ddlprof.model.stack_samples import START_LOOK_S
from ddlprof.writing.writer import FinishedStep, RankWriter
from tests.unit.writing.test_writer import header, lines_of


class Rig:
    """A helper whose thread has not been started, on a recorder fed by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorder = Recorder()
        self.writer = RankWriter(header())
        self.writer.open(directory)
        self.steps: list[FinishedStep] = []
        assembler = StepAssembler(0)
        assembler.boundaries.settle()  # holds nothing back
        self.helper = Helper(self.recorder, assembler, self.writer, None, self.steps.append)

    def train(self, steps: int, *collectives: Any) -> None:
        for _ in range(steps):
            self.recorder.emit(Kind.FORWARD_BEGIN, True, True, 4)
            self.recorder.emit(Kind.FORWARD_END, True)
            for collective in collectives:
                self.recorder.emit(Kind.COLLECTIVE, collective)
            self.recorder.emit(Kind.OPTIMIZER_BEGIN, 0)
            self.recorder.emit(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 1))

    def written(self, tag: str = "s") -> list[Any]:
        self.writer.close()
        return [record for kind, record in lines_of(self.directory) if kind == tag]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_steps_are_written_while_the_training_goes_on(rig: Rig) -> None:
    rig.helper.start()
    rig.train(1)
    deadline = time.monotonic() + 30
    while not [kind for kind, _ in lines_of(rig.directory) if kind == "s"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rig.helper.stop()


def test_whose_counters_the_context_has_is_said_once(rig: Rig) -> None:
    class Shared:
        whose = "the GPU's counters are of all the 2 processes on it"

        def sample(self) -> ContextRow:
            return ContextRow(0, None, None, None, 99.0, None, None)

        def health(self, last: bool) -> list[HealthReading]:
            return [HealthReading(0, "swap_pages", "", 7)] if last else []

        def close(self) -> None:
            pass

    rig.helper.context = Shared()  # type: ignore[assignment]
    rig.train(1)
    rig.helper._slow_records()
    rig.helper.stop()
    assert rig.written("n") == [Note("context", Shared.whose)]


def test_steps_of_a_helper_that_never_ran_are_written_at_the_end(rig: Rig) -> None:
    rig.train(3)
    rig.helper.stop()
    assert len(rig.written()) == 3


def collective(end: int | None) -> SimpleNamespace:
    return SimpleNamespace(
        group="0", seq=0, op="allreduce", bytes=4, ranks=2, root=None, ready=0, end=end, need=None, exposed=None,
        stream=None, stack=None,
    )  # fmt: skip


def test_steps_wait_in_order_for_the_end_of_their_collectives(rig: Rig) -> None:
    late = collective(None)
    rig.train(1, late)
    rig.train(1)
    rig.helper._drain()
    assert len(rig.steps) == 2
    assert len(rig.helper._pending) == 2
    late.end = 5
    rig.helper._drain()
    assert not rig.helper._pending


class SlowDevice:
    """A device that reaches a chunk after so many looks."""

    lag_ns = None

    def __init__(self, looks: float) -> None:
        self.looks = looks

    def ready(self, chunk: list[Any]) -> bool:
        self.looks -= 1
        return self.looks < 0

    def resolve(self, chunk: list[Any]) -> list[Any]:
        assert self.looks < 0, "the device is not there yet"
        return chunk


def test_chunks_wait_for_the_device(rig: Rig) -> None:
    rig.recorder.device = SlowDevice(1)
    rig.train(1)
    rig.helper._drain()
    assert not rig.steps
    rig.helper._drain()
    assert len(rig.steps) == 1


def test_the_end_waits_for_the_device(rig: Rig) -> None:
    rig.recorder.device = SlowDevice(5)
    rig.train(3)
    rig.helper.stop()
    assert len(rig.written()) == 3


def test_the_end_does_not_wait_for_a_device_that_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEVICE_WAIT_S", 0.05)
    rig.recorder.device = SlowDevice(float("inf"))
    rig.train(3)
    rig.helper.stop()
    assert rig.written() == []


def test_samples_are_of_the_step_in_which_they_were_taken(rig: Rig) -> None:
    def look() -> None:
        rig.helper.stacks.sample(threading.get_ident(), rig.recorder.recent(), rig.recorder.marks)

    rig.train(2)
    look()
    rig.train(1)  # ends the step of the sample
    look()  # after the last step: an evaluation, or the end of the process
    rig.helper.stop()
    (sampled,) = rig.written("q")
    assert (sampled.step, sampled.counts[1::2]) == (2, (1,))


def test_cost_of_looking(rig: Rig) -> None:
    rig.helper.start()
    rig.train(40)
    rig.helper.stop()
    costs: list[Overhead] = rig.written("k")
    assert costs[-1].hook_steps == 40
    assert costs[-1].hook_ns > 0
    assert costs[-1].wall_ns > 0


def test_the_threads_own_processor_time_is_what_counts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.helper.cost().helper_cpu_ns == 0  # asked by another thread
    begin = time.thread_time_ns()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "current_thread", lambda: rig.helper._thread)
        cost = rig.helper.cost()
    assert begin <= cost.helper_cpu_ns <= time.thread_time_ns()
    assert rig.helper.cost().helper_cpu_ns == cost.helper_cpu_ns


def test_what_the_loader_cost_is_written_after_each_of_the_first_steps(rig: Rig) -> None:
    for _ in range(30):
        rig.recorder.emit(Kind.DATA_BEGIN, 0)
        rig.recorder.emit(Kind.DATA_END, 0, lambda: (0.5, 0.5, 10, 20, 30), 4)
        rig.train(1)
    rig.helper.stop()
    costs = rig.written("d")
    assert costs[:20] == [LoaderCost(n, 4 * n, 10 * n, 20 * n, 30 * n) for n in range(1, 21)]
    assert costs[20:] == [LoaderCost(30, 120, 300, 600, 900)]


def test_who_watches_the_scripts_threads_does_not_see_ours(rig: Rig) -> None:
    seen: list[str] = []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if "ddlprof" in frame.f_code.co_filename and "_run" not in frame.f_code.co_name:
            seen.append(frame.f_code.co_name)

    before = threading.gettrace(), threading.getprofile()  # coverage's, of all threads that start later
    threading.settrace(watch)
    threading.setprofile(watch)
    try:
        rig.helper.start()
    finally:
        threading.settrace(before[0])
        threading.setprofile(before[1])
    rig.train(10)
    while not rig.steps:
        time.sleep(0.01)
    assert seen == []
    rig.helper.stop()


def test_the_device_is_asked_only_while_no_graph_is_captured(rig: Rig) -> None:
    held: list[bool] = []

    def ask(chunk: Any) -> Any:
        held.append(rig.helper.device_free.locked())
        return chunk

    rig.recorder.device = SimpleNamespace(ready=lambda chunk: ask(chunk) is chunk, resolve=ask)
    rig.train(1)
    rig.helper.stop()
    assert held
    assert all(held)


# -- when it works ----------------------------------------------------------------------------------------------------


def test_one_drain_serves_many_steps_unless_somebody_waits_for_them(rig: Rig) -> None:
    helper, recorder = rig.helper, rig.recorder
    assert helper._drains_soon()  # in the first steps
    recorder.boundaries = 1000
    assert not helper._drains_soon()
    helper.is_awaited = lambda: True
    assert helper._drains_soon()
    helper.is_awaited = lambda: False
    recorder.chunks.extend([] for _ in range(module._MOST_CHUNKS + 1))
    assert helper._drains_soon()  # short steps


def test_it_wakes_up_more_often_to_look_at_the_stack_while_much_is_other(rig: Rig) -> None:
    helper = rig.helper
    assert helper._pause() == START_LOOK_S  # nothing is trained yet
    rig.recorder.boundaries, helper.steps_ns, helper.other_ns = 1, 100, 1
    assert helper._pause() < START_LOOK_S  # the facts about the model are still to be evaluated
    helper._first_updates = False
    assert helper._pause() == FIRST_LOOK_S
    helper._schedule.looks = 4 * FIRST_LOOKS
    most_s = helper._pause()
    helper.other_ns = 50
    assert FIRST_LOOK_S < helper._pause() < most_s


def test_workers_are_looked_at_once_when_they_have_started(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    wakes, seen = iter([False, False, True]), list[int]()
    rig.helper.context = ContextSampler(0, time.perf_counter_ns)
    monkeypatch.setattr(rig.helper.context, "workers_started", lambda: seen.append(1))
    monkeypatch.setattr(rig.helper, "_nap", lambda: next(wakes))
    rig.recorder.workers_started = True
    rig.helper._loop()
    assert seen == [1]


def test_the_stack_is_still_looked_at_on_the_second_day(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = [1000.0], list[float]()

    def nap() -> bool:
        clock[0] += max(rig.helper._pause(), 10.0)
        return clock[0] > 48 * 3600

    monkeypatch.setattr(real_time.time, "perf_counter", staticmethod(lambda: clock[0]))
    monkeypatch.setattr(rig.helper, "_nap", nap)
    monkeypatch.setattr(rig.helper, "_sample_stack", lambda: looks.append(clock[0]))
    rig.train(1)
    rig.helper._loop()
    assert all(any(hour < look / 3600 < hour + 1 for look in looks) for hour in range(1, 48))
