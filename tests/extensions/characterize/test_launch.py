"""Which runs `ddlprof characterize` makes, in which order."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.characterize.experiment import Experiment
from ddlprof.extensions.characterize.launch import PlannedRun, plan
from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import AddedHooks
from tests.unit.cli.commands import ddlprof


def folders(ranks: int, repeats: int, *skipped: str) -> list[str]:
    return [run.folder for run in plan(ranks, 100, repeats, skipped)]


def test_repeats_take_turns() -> None:
    assert folders(1, 2) == ["warming", "all-replayed", "warm", "cold", "all-replayed-2", "warm-2", "cold-2"]


def test_what_each_is() -> None:
    found = {run.name: run for run in plan(4, 60, 1, ())}
    assert {name: run.ranks for name, run in found.items()} == {
        "warming": 4, "one-replayed": 1, "all-replayed": 4, "warm": 4, "cold": 4,
    }  # fmt: skip
    assert {name for name, run in found.items() if run.experiment.replayed} == {"one-replayed", "all-replayed"}
    assert {name for name, run in found.items() if run.experiment.drop_cache} == {"cold"}
    assert found["cold"].describe() == "cold: 4 ranks, real input, cold page cache"
    assert found["one-replayed"].describe() == "one-replayed: 1 rank, replayed input"


def test_the_time_left_is_that_of_all_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s, folders = 100.0, []

    def run(planned: PlannedRun, target: LaunchTarget, directory: Path) -> None:
        nonlocal now_s
        now_s += 60
        folders.append(planned.folder)
        if len(folders) == 3:
            raise UserError("enough")

    monkeypatch.setattr("ddlprof.extensions.characterize.launch.run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    script = tmp_path / "train.py"
    script.touch()
    assert ddlprof(monkeypatch, "characterize", "--skip", "cold", "--out", str(tmp_path / "out"), str(script)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert told == [
        "ddlprof: run 2 of 3: 33 %, about 2 min left",
        "ddlprof: run 3 of 3: 67 %, about 60 s left",
    ]


def test_handed_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(7, drop_cache=True)
    for name, value in experiment.environment().items():
        monkeypatch.setenv(name, value)
    added = AddedHooks.from_environment()
    assert added is not None
    assert Experiment(**added.settings) == experiment
    assert AddedHooks.from_environment() is None
    assert not set(experiment.environment()) & set(os.environ)
