"""A job that hangs while it is watched: said in the view and in metrics, and no longer once steps end again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.live import follower as module
from ddlprof.live import words
from ddlprof.live.figures import FIGURES
from ddlprof.live.follower import RunFollower
from ddlprof.live.snapshot import Observer, Snapshot
from tests.unit.analysis.test_hangs import FULL, LESS, rank
from tests.unit.live.runs import GrowingRun
from tests.unit.live.test_screen import text_of

SAID = (
    "for 1 min: rank 1 is missing at train.py:11 main; ranks 0, 2 wait in allreduce #11 of group 0 (data, 4,096 bytes)"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GrowingRun:
    """Three ranks that have made steps; a standstill is looked for at once."""
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    monkeypatch.setattr(module, "STANDING_EVERY_S", 0.0)
    monkeypatch.setattr(module, "STANDING_SHARE", 0.0)
    run = GrowingRun(tmp_path, ranks=3).begin()
    run.train(20)
    return run


def stand(run: GrowingRun, **fields: object) -> None:
    """Rank 1 does not come to the last collective."""
    for number, forms in enumerate((FULL, LESS, FULL)):
        state = rank(number, forms, *(["script"] if number == 1 else []))
        replace(state, **fields).write(run.directory / "attempt-0")  # type: ignore[arg-type]


def look(observer: Observer) -> Snapshot:
    return observer.look(time.time_ns())


def values(snapshot: Snapshot, begin: str) -> dict[tuple[str, ...], float]:
    return {
        (figure.prometheus, *labels): value
        for figure in FIGURES if figure.prometheus.startswith(begin)
        for labels, value in figure.points(snapshot)
    }  # fmt: skip


def test_a_hang_is_said_while_it_lasts(run: GrowingRun) -> None:
    observer = Observer(RunFollower(run.directory))
    assert words.hang(look(observer)) == ""
    assert values(look(observer), "ddlprof_hang") == {("ddlprof_hang",): 0}
    stand(run)
    snapshot = look(observer)
    assert words.hang(snapshot) == SAID
    assert words.line(snapshot).startswith(f"ddlprof HANG {SAID}; step 20")
    assert f"Hang     {SAID[:60]}" in text_of(snapshot)
    assert values(snapshot, "ddlprof_hang") == {
        ("ddlprof_hang",): 1, ("ddlprof_hang_cause", "1", "missing", "allreduce"): 1,
    }  # fmt: skip
    stand(run, resumed=True)
    run.train(10)
    assert words.hang(look(observer)) == ""


def test_ranks_that_wait_for_one_at_work_do_not_hang(run: GrowingRun) -> None:
    stand(run, cores=1.0)
    snapshot = look(Observer(RunFollower(run.directory)))
    assert snapshot.hang is None
    assert "HANG" not in words.line(snapshot)


def test_nothing_is_read_while_steps_end(run: GrowingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Observer(RunFollower(run.directory))
    stand(run)
    assert look(observer).hang is not None
    monkeypatch.setattr(module, "QUIET_S", 3600.0)
    monkeypatch.setattr(module, "read_standing", pytest.fail)
    run.train(10)
    assert look(observer).hang is None
    assert look(observer).hang is None


def test_a_run_that_hung_and_was_killed_says_so(run: GrowingRun) -> None:
    stand(run)
    assert words.hang(look(Observer(RunFollower(str(run.directory))))) == SAID
