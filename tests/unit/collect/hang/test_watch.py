"""When a rank takes itself for standing still, and what it writes then; time is virtual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddlprof.base import real_time
from ddlprof.collect.hang.watch import HangWatch, Quiet
from ddlprof.model.hang import ASKED_NAME, RankState, ThreadState, decode_state


class Rank:
    """A rank with a clock of its own. `passes(seconds)` lets time pass, with events where `moves`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, hang_after_s: float | None = 10.0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(real_time.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(real_time.time, "time_ns", lambda: int(self.now * 1e9))
        self.recorder = cast("Any", SimpleNamespace(calls=0, active=True))
        self.folder = folder
        self.looks = 0
        self.watch = HangWatch(self.recorder, hang_after_s, lambda: folder, self.state, self.look)

    def look(self) -> None:
        self.looks += 1

    def state(self, quiet: Quiet) -> RankState:
        return RankState(
            rank=0, world_size=1, attempt=0, host="a", pid=1, unix_ns=int(self.now * 1e9),
            first_unix_ns=quiet.first_unix_ns, answers_s=quiet.answers_s, status="trains", stands=quiet.stands,
            quiet_s=quiet.quiet_s, since_step_s=quiet.since_step_s, limit_s=quiet.limit_s, step=quiet.steps,
            doing="script", thread=ThreadState("training", "", "", []),
        )  # fmt: skip

    def steps(self, count: int, seconds: float = 0.1) -> None:
        for _ in range(count):
            self.now += seconds
            self.recorder.calls += 5
            self.watch.step_ended(int(seconds * 1e9))

    def passes(self, seconds: int, moves: bool = False) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.recorder.calls += moves
            self.watch.poll()

    @property
    def written(self) -> RankState | None:
        path = self.folder / "rank-0.hang.json"
        return decode_state(path.read_bytes()) if path.exists() else None


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def test_the_first_steps_may_take_any_time(rank: Rank) -> None:
    rank.steps(2)
    rank.passes(600)
    assert rank.written is None


def test_without_hooks_nothing_is_known(rank: Rank) -> None:
    rank.steps(10)
    rank.watch.active = False
    rank.passes(600)
    rank.watch.active = True
    rank.passes(5)
    assert rank.written is None


def test_it_says_that_it_went_on(rank: Rank) -> None:
    rank.steps(10)
    rank.passes(20)
    rank.steps(1)
    assert rank.written is not None
    assert rank.written.resumed


def test_single_events_of_an_error_are_no_progress(rank: Rank) -> None:
    rank.steps(10)
    rank.passes(20)
    rank.recorder.calls += 3
    rank.passes(1)
    assert rank.written is not None
    assert not rank.written.resumed
    rank.passes(3, moves=True)
    assert rank.written.resumed


def test_it_answers_when_asked(rank: Rank) -> None:
    rank.steps(10)
    rank.passes(1, moves=True)
    (rank.folder / ASKED_NAME).touch()
    rank.passes(5, moves=True)
    written = rank.written
    assert written is not None
    assert not written.stands


def test_a_folder_that_takes_no_file_is_noted(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(state: RankState, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RankState, "write", fails)
    rank.steps(10)
    rank.passes(20)
    assert rank.watch.failure == "No space left on device"


def test_a_state_survives_its_file(rank: Rank) -> None:
    rank.steps(10)
    rank.passes(20)
    written = rank.written
    assert written is not None
    assert decode_state((rank.folder / "rank-0.hang.json").read_bytes()) == replace(written)


def test_where_it_stood_is_kept_when_an_error_ends_it(rank: Rank) -> None:
    rank.steps(10)
    rank.passes(13)
    assert rank.watch.stands
    here = ThreadState("training", "train.py:9 load", "", [])
    made = rank.state
    rank.watch._state = lambda quiet: replace(made(quiet), thread=here)
    rank.passes(10)
    rank.watch.write(True, status="exception", thread=replace(here, place="train.py:20 all_reduce"))
    written = rank.written
    assert written is not None
    assert (written.stood_at, written.thread.place) == ("train.py:9 load", "train.py:20 all_reduce")
    rank.steps(1)
    rank.watch.write(False, status="exception")
    written = rank.written
    assert written is not None
    assert written.stood_at == ""
