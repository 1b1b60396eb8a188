"""Trials that train as one are those of separate programs, whatever the user's data, loss and forward count or draw."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ddlprof.extensions.fusion.apart import SPAWN
from ddlprof.extensions.fusion.planner import Planner
from ddlprof.extensions.fusion.results import FusionPrediction
from tests.short import first_short

NETS = """
import random
import numpy
import torch
from torch import nn
from torch.nn import functional

random.seed(3)
numpy.random.seed(3)
X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
epochs, calls, made, weight = [0], [0], [0], 0.0

def make():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

def plain():
    for rows in torch.randperm(len(X)).split(16):
        yield X[rows], Y[rows]

def counted():
    epochs[0] += 1
    for rows in torch.randperm(len(X), generator=torch.Generator().manual_seed(epochs[0])).split(16):
        yield X[rows], Y[rows]

def drawn():
    order = list(range(len(X)))
    random.shuffle(order)
    for begin in range(0, len(X), 16):
        rows = torch.tensor(order[begin:begin + 16])
        yield X[rows] + torch.from_numpy(numpy.random.randn(16, 6)).float() / 4, Y[rows]

def curriculum():
    global weight
    weight += 0.25
    return plain()

def weighted(output, target):
    return weight * functional.cross_entropy(output, target)

def warming_up(output, target):
    calls[0] += 1
    return min(1.0, calls[0] / 15) * functional.cross_entropy(output, target)

def mixed(output, target):
    share = random.random()
    return share * functional.cross_entropy(output, target) + (1 - share) * output.square().mean()

def another_each_time():
    made[0] += 1
    model = make()
    with torch.no_grad():
        model[0].weight.mul_(made[0])
    return model

class Late(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)
        self.calls = iter(range(1000))  # which nobody can look at

    def forward(self, x):
        return super().forward(x) * (1 if next(self.calls) < 8 else 2)
"""
RATES = [0.003, 0.01, 0.03]
EPOCHS = 3
Fuse = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fuse(in_folder_of: Callable[[str, str], Fuse]) -> Fuse:
    """Runs the command in a directory that has `made_up_state.py`: exit code, stdout, stderr."""
    typed = in_folder_of("made_up_state", NETS)

    def run(model: str, data: str, *arguments: str) -> tuple[int, str, str]:
        words = f"made_up_state:{model}", "--data", f"made_up_state:{data}", "--processes", "0"
        return typed("fuse", *words, "--sweep", f"lr={','.join(map(str, RATES))}", *arguments)

    return run


def separate(data: str, loss: str, rate: float) -> dict[str, Tensor]:
    """The parameters of one trial, trained by a program of its own as its user would write it."""
    program = runpy.run_path("made_up_state.py")
    torch.manual_seed(0)
    model: Any = program["make"]()
    loss_of = program.get(loss, functional.cross_entropy)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(EPOCHS):
        for x, y in program[data]():
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(
    ("data", "loss", "more"),
    first_short([
        ("counted", "cross_entropy", ["--force", "--max-models", "2"]),
        ("drawn", "cross_entropy", ["--force", "--max-models", "2"]),
        ("plain", "warming_up", ["--force", "--max-models", "2"]),
        ("curriculum", "weighted", ["--force", "--max-models", "2"]),
        ("drawn", "mixed", ["--force", "--max-models", "2"]),
        ("drawn", "mixed", ["--force"]),
        ("drawn", "mixed", ["--max-models", "1"]),
        ("plain", "warming_up", ["--max-models", "1"]),
    ], 2),
)  # fmt: skip
def test_trials_are_those_of_programs_of_their_own(
    fuse: Fuse, tmp_path: Path, data: str, loss: str, more: list[str]
) -> None:
    """Also those of a second group. Nothing is trained, counted or drawn before the first epoch."""
    named = loss if loss == "cross_entropy" else f"made_up_state:{loss}"
    words = ["--loss", named, "--epochs", str(EPOCHS), "--save", "models", "-o", "-", "-o", "all.json"]
    code, out, err = fuse("make", data, *words, *more)
    assert code == 0, err
    (part,) = json.loads((tmp_path / "all.json").read_text())["parts"]
    assert part["fuse"] is ("--force" in more)
    if part["fuse"]:
        assert part["equality"]["largest_difference"] < 1e-4
        assert "Equal      the first 3 steps of all 3 trials are those of each by itself" in out
    for number, rate in enumerate(RATES):
        expected = separate(data, loss, rate)
        found = torch.load(tmp_path / "models" / f"trial-{number}.pt")
        assert all(torch.allclose(found[name], each, atol=2e-5) for name, each in expected.items())


@pytest.mark.slow
def test_trials_in_processes_that_import_all_anew(fuse: Fuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU, where a process cannot be copied."""
    monkeypatch.setattr("ddlprof.extensions.fusion.job.way_of_processes", lambda can_spawn: SPAWN)
    words = ["--loss", "made_up_state:mixed", "--max-steps", "2", "--force"]
    code, out, err = fuse("make", "drawn", *words)
    assert code == 0, err
    assert "the first 2 steps of all 3 trials are those of each by itself" in out


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_models_that_are_others_as_one_are_trained_by_themselves(fuse: Fuse, more: list[str]) -> None:
    code, out, _ = fuse("another_each_time", "plain", "--force", *more)
    assert code == 0
    assert "do not fuse: cannot be fused: as one it is another model: the gradient of " in " ".join(out.split())
    assert "Predicted" not in out


@pytest.mark.slow
def test_the_prediction_is_of_what_is_run(fuse: Fuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a recording is given up in the middle of the training, steps are timed and judged anew without it."""

    def predicted(self: Planner, models: int) -> FusionPrediction:
        alone_s = 2.9 if self._mode.traced else 0.89
        return FusionPrediction(models, ((1, 1.0),), 0.0, 1.0, alone_s)

    monkeypatch.setattr(Planner, "_predict", predicted)
    code, out, _ = fuse("Late", "plain", "--max-steps", "600")
    assert code == 0
    assert "do not fuse: 0 % of a step is the same for one model and for many: 0.89 times as fast" in out
    assert "2.90 times" not in out
    code, out, _ = fuse("Late", "plain", "--max-steps", "600", "--force")
    assert code == 0
    assert "(0.89 times)" in out
    assert "is not the same at each step, so it was not recorded" in " ".join(out.split())
