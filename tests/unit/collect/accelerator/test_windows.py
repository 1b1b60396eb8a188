"""Profiler windows: what they say of a step, when they open and close, and what happens when something breaks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.accelerator import windows as module
from ddlprof.collect.accelerator.windows import EVERY_UPDATES, FIRST_UPDATE, MOST_BEHIND, ProfilerWindows, summarise
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.kernels import Activity
from ddlprof.model.records import Flag, WindowRow
from tests.unit.collect.lagging_device import MS, UNIX, LaggingDevice, Profiler, train
from tests.unit.collect.test_helper import Rig

NOW = {0: 0.0}
"""The clock of the process, in seconds."""


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time_ns=lambda: UNIX, perf_counter_ns=lambda: 0, perf_counter=lambda: NOW[0])
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setitem(NOW, 0, 0.0)


class Trainer:
    """A helper with windows on a device that runs behind."""

    def __init__(self, directory: Path, lead_ns: int = 0, most: int = 1) -> None:
        self.rig = Rig(directory)
        self.device = LaggingDevice(lead_ns)
        self.profiler = Profiler(self.device)
        recorder, helper, writer = self.rig.recorder, self.rig.helper, self.rig.writer
        recorder.clock = self.device.now
        recorder.at_update = helper.at_update
        self.windows = helper.windows = ProfilerWindows(
            recorder, self.profiler, most, self.device.mark, writer.note
        )  # fmt: skip

    def train(self, steps: int, *all_reduces: int) -> None:
        train(self.device, self.rig.recorder, self.rig.helper, steps, all_reduces)

    def rows(self) -> list[WindowRow]:
        self.rig.helper.stop()
        return self.rig.written("w")

    def lost(self) -> list[tuple[int, str]]:
        """What the file says of windows that could not be read."""
        self.rig.helper.stop()
        return [(drop.count, drop.reason) for drop in self.rig.written("u") if drop.source == "windows"]

    def notes(self) -> list[str]:
        return [note.message for note in self.rig.written("n") if note.source == "windows"]


def test_a_window() -> None:
    activities = [
        Activity("gemm", 100, 140),
        Activity("ncclKernel_AllReduce", 120, 180),
        Activity("Memcpy HtoD", 190, 200),
        Activity("gemm", 130, 150),
    ]
    assert summarise(50, 2, activities, 100, 200) == WindowRow(
        first_update=50, updates=2, window_ns=100, work_ns=60, comm_only_ns=30, kernels=3
    )


def test_an_empty_window_says_nothing() -> None:
    assert summarise(50, 2, [], 0, 100) is None
    assert summarise(50, 2, [Activity("gemm", 200, 300)], 0, 100) is None


@pytest.mark.parametrize("lead_ms", [0, 4, 10, 40])
def test_two_whole_steps_are_measured_however_far_the_device_is_behind(tmp_path: Path, lead_ms: int) -> None:
    trainer = Trainer(tmp_path, lead_ms * MS)
    trainer.train(FIRST_UPDATE + 20)
    (row,) = trainer.rows()
    assert row == WindowRow(FIRST_UPDATE, 2, window_ns=14 * MS, work_ns=12 * MS, comm_only_ns=0, kernels=6)
    assert trainer.profiler.on is None


def test_steps_of_a_window_are_traced_also_those_that_pay_for_it(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(FIRST_UPDATE + 20)
    trainer.rig.helper.stop()
    traced = [row.step for row in trainer.rig.written() if row.flags & Flag.TRACED]
    assert traced == list(range(FIRST_UPDATE, FIRST_UPDATE + 5))
    longest = max(trainer.rig.steps, key=lambda step: step.row.step_ns)
    assert longest.row.step in traced


def test_communication_alone_is_told(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(FIRST_UPDATE + 20, 2 * MS, 3 * MS)
    (row,) = trainer.rows()
    assert (row.work_ns, row.comm_only_ns, row.window_ns) == (12 * MS, 10 * MS, 24 * MS)


def test_a_window_in_which_nothing_was_recorded_is_said(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.profiler.activities = lambda result: []  # type: ignore[method-assign]
    trainer.train(FIRST_UPDATE + 20)
    assert trainer.rows() == []
    assert trainer.lost() == [(1, "the profiler recorded no work of the device in its steps")]


def test_no_more_windows_than_asked_for(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, most=2)
    trainer.train(FIRST_UPDATE + 3 * EVERY_UPDATES)
    assert [row.first_update for row in trainer.rows()] == [FIRST_UPDATE, FIRST_UPDATE + EVERY_UPDATES]


def test_several_updates_a_step(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    recorder, device = trainer.rig.recorder, trainer.device
    boundaries = trainer.rig.helper.assembler.boundaries
    boundaries.ends_step = lambda optimizer: optimizer == 0  # type: ignore[method-assign]
    for _ in range(FIRST_UPDATE):
        recorder.emit(Kind.FORWARD_BEGIN, True, True, 4)
        device.launch("gemm", MS)
        recorder.emit(Kind.OPTIMIZER_BEGIN, 1)
        recorder.emit(Kind.OPTIMIZER_END, 1, False, FirstSeen("SGD", 1))
        train(device, recorder, trainer.rig.helper, 1)
    (row,) = trainer.rows()
    assert (row.updates, row.kernels) == (2, 8)


def test_a_device_that_never_comes_ends_the_window(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, lead_ns=100_000 * MS)
    trainer.train(FIRST_UPDATE + 3 + MOST_BEHIND + 5)
    assert trainer.profiler.on is None
    assert not trainer.rows()
    assert trainer.lost() == [(1, f"the device was over {MOST_BEHIND} updates behind")]


@pytest.mark.parametrize("where", ["start", "stop", "activities"])
def test_a_profiler_that_fails_ends_the_windows_and_nothing_else(tmp_path: Path, where: str) -> None:
    trainer = Trainer(tmp_path, most=3)
    trainer.profiler.failing = where
    steps = FIRST_UPDATE + 2 * EVERY_UPDATES
    trainer.train(steps)
    assert not trainer.rows()
    assert trainer.profiler.on is None
    assert trainer.profiler.starts <= 1
    assert len(trainer.rig.written()) == steps
    assert trainer.notes() == [f"ended after 0 of 3: RuntimeError: {where} failed"]
    assert trainer.lost() == [(1, f"RuntimeError: {where} failed")]


def test_an_open_window_is_closed_when_hooks_are_taken_back(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, most=5)
    trainer.train(FIRST_UPDATE + 2)
    trainer.windows.end()
    assert trainer.profiler.on is None
    trainer.train(EVERY_UPDATES + 20)
    assert trainer.profiler.starts == 1


def test_steps_of_an_open_window_wait_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tmp_path)
    monkeypatch.setattr("ddlprof.collect.helper._COLLECTIVES_WAIT_S", 0.0)
    trainer.train(FIRST_UPDATE + 20, 2 * MS, 3 * MS)
    trainer.rig.helper.stop()
    known: dict[bool, list[Any]] = {True: [], False: []}
    for step in trainer.rig.steps:
        known[step.collectives[0].duration is not None].append(step)
    assert [[c.duration for c in step.collectives] for step in known[True]] == [[2 * MS, 3 * MS]] * 2
    assert all(step.row.flags & Flag.TRACED for step in known[True])
    for step in known[True]:
        one, two = step.collectives
        assert (one.exposed, two.exposed) == (2 * MS, 3 * MS)
        assert two.end - one.end == 3 * MS
        assert step.row.comm_ns == 5 * MS


def test_a_window_does_not_stay_open_during_an_evaluation(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(FIRST_UPDATE + 2)
    emit = trainer.rig.recorder.emit
    NOW[0] += 20
    emit(Kind.FORWARD_BEGIN, False, False, 4)
    assert trainer.profiler.on is not None
    NOW[0] += 20
    emit(Kind.FORWARD_END, False)
    assert trainer.profiler.on is None
    trainer.train(10)
    assert not trainer.rows()
    assert trainer.lost() == [(1, f"it would have been open for over {module.MOST_S} s")]


def test_nothing_is_asked_of_the_device_during_a_capture(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    free = trainer.windows._device_free
    trainer.train(FIRST_UPDATE + 3)
    with free:
        trainer.device.mark = lambda: pytest.fail("asked")  # type: ignore[method-assign]
        trainer.train(5)
        assert trainer.profiler.on is not None
    trainer.train(3)
    assert trainer.profiler.on is None
    assert len(trainer.rows()) == 1


@pytest.mark.parametrize("groups", [("0", "0"), ("0", "1")])
def test_collectives_of_several_groups_are_not_told_apart_by_their_order(groups: tuple[str, str]) -> None:
    collectives = [SimpleNamespace(group=group, op="allreduce", duration=None) for group in groups]
    step: Any = SimpleNamespace(collectives=collectives)
    kernels = [Activity("ncclDevKernel_AllReduce", begin, begin + 5) for begin in (10, 20)]
    module._give_durations([step], kernels)
    assert [each.duration for each in collectives] == ([5, 5] if groups[0] == groups[1] else [None, None])
