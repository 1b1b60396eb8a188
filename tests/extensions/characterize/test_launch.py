"""Which runs `ddlprof characterize` makes, in which order."""

from __future__ import annotations

import os

import pytest

from ddlprof.extensions.characterize.experiment import Experiment
from ddlprof.extensions.characterize.launch import plan
from ddlprof.model.options import AddedHooks


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


def test_handed_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(7, drop_cache=True)
    for name, value in experiment.environment().items():
        monkeypatch.setenv(name, value)
    added = AddedHooks.from_environment()
    assert added is not None
    assert Experiment(**added.settings) == experiment
    assert AddedHooks.from_environment() is None
    assert not set(experiment.environment()) & set(os.environ)
