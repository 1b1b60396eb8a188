"""The goodput of a watched job, against what the whole files tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddlprof.analysis.goodput import goodput
from ddlprof.analysis.run import analyse
from ddlprof.analysis.trials import trials_of
from ddlprof.live.figures import FIGURES
from ddlprof.live.follower import RunFollower
from ddlprof.live.snapshot import Observer
from ddlprof.model.checkpoint_files import LOADED, SAVED, CheckpointFile
from ddlprof.store import load_run
from tests.unit.live.runs import GrowingRun

SECOND_NS = 10**9


def interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, saved: bool) -> None:
    """200 steps of 10 ms, killed; three seconds later 200 more, from step 150 or from the beginning."""
    now = time.time_ns()
    for attempt in (0, 1):
        began = now + attempt * 5 * SECOND_NS
        monkeypatch.setattr("tests.unit.live.runs.time.time_ns", lambda began=began: began)
        run = GrowingRun(folder, attempt=attempt).begin()
        (writer,) = run.writers
        if attempt and saved:
            writer.context(file_at(LOADED, 0))
        run.train(150)
        if not attempt and saved:
            writer.context(file_at(SAVED, 150))
            writer.flush()
        run.train(50)
    monkeypatch.undo()


def file_at(what: str, step: int) -> CheckpointFile:
    return CheckpointFile(what, step, "place", "file")


@pytest.mark.parametrize("saved", [True, False])
def test_it_is_that_of_the_report(saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch, saved)
    expected = goodput(trials_of(analyse(load_run(tmp_path))))
    assert expected is not None
    assert expected.share is not None
    assert expected.new_steps == (350 if saved else 200)
    found = Observer(RunFollower(tmp_path)).look(time.time_ns())
    assert found.goodput == pytest.approx(expected.share, rel=0.02)
    (figure,) = [each for each in FIGURES if each.otel == "ddlprof.goodput"]
    assert list(figure.points(found)) == [((), found.goodput)]


def test_before_the_first_step_there_is_none(tmp_path: Path) -> None:
    GrowingRun(tmp_path).begin()
    assert Observer(RunFollower(tmp_path)).look(time.time_ns()).goodput is None
