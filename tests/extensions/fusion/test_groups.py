"""Groups of trials that take turns: what is held of those that wait, and whose batches they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.halving import Halving
from ddlprof.extensions.fusion.job import run
from ddlprof.extensions.fusion.loop import SweepLength
from ddlprof.extensions.fusion.planner import FuseOptions
from ddlprof.extensions.fusion.results import Result
from ddlprof.extensions.fusion.task import TaskSpec
from tests.short import first_short

NETS = """
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
held = [(X, Y)]
evaluations = Path(__file__).with_name("evaluations")

def make():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

def counted():
    with evaluations.open("a") as file:
        file.write("1")
    return held

def loader(workers):
    return DataLoader(TensorDataset(X, Y), 16, shuffle=True, num_workers=workers, persistent_workers=workers > 0)

plain, lasting = loader(0), loader(1)
"""
RATES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "made_up_groups.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_up_groups"


def halved(task: TaskSpec, most: int, save: Path | None = None) -> Result:
    evaluates = bool(task.evaluation or task.metric)
    options = FuseOptions(SweepLength(16, 1), most, evaluate=evaluates, save=save, halving=Halving(2), is_timed=False)
    return run(task, {"lr": RATES}, options)


def test_a_trial_is_evaluated_once_for_a_decision(names: str) -> None:
    found = halved(TaskSpec(f"{names}:make", f"{names}:plain", evaluation=f"{names}:counted"), 2)
    assert all(each.eval_loss is not None for each in found.trials)
    evaluations: Path = __import__(names).evaluations
    assert len(evaluations.read_text()) == 4 + 2 + 1 + 1  # groups before each decision, and the last


def test_too_few_trials_for_a_decision_are_said(names: str) -> None:
    options = FuseOptions(SweepLength(16, 1), halving=Halving(9), is_timed=False)
    (part,) = run(TaskSpec(f"{names}:make", f"{names}:plain"), {"lr": RATES}, options).parts
    assert part.notes == ("no successive halving: fewer trials than it ends at once, or too few steps",)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_that_torch_cannot_take_is_one_line(names: str, seed: int) -> None:
    options = FuseOptions(SweepLength(16, 1), is_timed=False)
    for task, sweeps in (
        (TaskSpec(f"{names}:make", f"{names}:plain", seed=seed), {"lr": RATES}),
        (TaskSpec(f"{names}:make", f"{names}:plain"), {"seed": [1, seed]}),
    ):
        with pytest.raises(UserError, match=f"seed {seed}: torch takes whole numbers of 64 bits"):
            run(task, sweeps, options)


@pytest.mark.parametrize("most", first_short([8, 2]))
def test_batches_that_a_second_loop_disturbs_are_refused(names: str, most: int) -> None:
    task = TaskSpec(f"{names}:make", f"{names}:lasting", metric="accuracy")
    with pytest.raises(UserError, match="lasting iterates over its batches only once at a time"):
        halved(task, most)
    halved(TaskSpec(f"{names}:make", f"{names}:lasting"), most)
