"""Sweeps of `ddlprof fuse` over ranges, optimizers and schedules, with accumulation, and trials that end early.

Whatever trains as one has to give each trial the losses that it has alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.short import first_short

NETS = """
import torch
from torch import nn

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()

def make(width=5):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, 2))

def batches(batch=16):
    for rows in torch.randperm(len(X)).split(batch):
        yield X[rows], Y[rows]

def regression():
    for rows in torch.randperm(len(X)).split(16):
        yield X[rows], X[rows, :2]

def slow(step, steps, lr, weight_decay, turns=1):
    return {"lr": lr / (1 + turns * step), "weight_decay": weight_decay * step / steps}

def odd(step, steps, lr):
    return {"lr": lr} if lr < 0.05 else {"eps": 1e-8}
"""
Fuse = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fuse(in_folder_of: Callable[[str, str], Fuse]) -> Fuse:
    """Runs the command in a directory that has `made_up_nets.py`: exit code, stdout, stderr."""
    typed = in_folder_of("made_up_nets", NETS)

    def run(*arguments: str, data: str = "batches") -> tuple[int, str, str]:
        return typed("fuse", "made_up_nets:make", "--data", f"made_up_nets:{data}", "--processes", "0", *arguments)

    return run


def both(fuse: Fuse, folder: Path, *words: str, data: str = "batches") -> list[list[dict[str, Any]]]:
    """The trials of a sweep that trains as one, and of the same one after another."""
    found = []
    for name, more in (("fused", ["--force"]), ("alone", ["--max-models", "1"])):
        code, _, err = fuse(*words, *more, "-o", f"{name}.json", data=data)
        assert code == 0, err
        trials = json.loads((folder / f"{name}.json").read_text())["trials"]
        assert {trial["fused"] for trial in trials} == {name == "fused"}
        found.append(trials)
    return found


def assert_same(found: list[list[dict[str, Any]]]) -> None:
    """Equal steps, ends, values and losses."""
    for one, other in zip(*found, strict=True):
        assert [one[name] for name in ("steps", "stopped", "values")] == [
            other[name] for name in ("steps", "stopped", "values")
        ]
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-5)
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=2e-5)


WAYS = {
    "cosine": ["--schedule", "cosine", "--sweep", "warmup=0,6", "--sweep", "lr=log(1e-3,1e-1,3)"],
    "onecycle of epochs": ["--schedule", "onecycle", "--sweep", "pct_start=0.2,0.5", "--epochs", "3"],
    "a schedule of the user": [
        "--schedule", "made_up_nets:slow", "--sweep", "turns=0,0.5", "--sweep", "weight_decay=0.01,0.1",
        "--optimizer", "adamw",
    ],
    "accumulation": ["--grad-accum", "4", "--sweep", "lr=0.01,0.1", "--clip-norm", "0.05", "--epochs", "3"],
    "amsgrad of some": ["--sweep", "amsgrad=true,false", "--sweep", "lr=0.01,0.1"],
    "amsgrad of all": ["--sweep", "amsgrad=true", "--sweep", "lr=0.01,0.01001", "--optimizer", "adamw"],
    "optimizers": ["--sweep", "optimizer=sgd,adam,adamw", "--sweep", "momentum=0,0.9", "--sweep", "lr=0.01,0.1"],
    "all of it": [
        "--sweep", "optimizer=sgd,adam", "--sweep", "amsgrad=true,false", "--sweep", "lr=log(1e-3,1e-1)",
        "--trials", "6", "--schedule", "cosine", "--grad-accum", "2", "--halving", "2",
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", first_short(WAYS))
def test_trials_are_those_of_separate_trainings(fuse: Fuse, tmp_path: Path, way: str) -> None:
    words = WAYS[way]
    length = [] if "--epochs" in words else ["--max-steps", "24"]
    assert_same(both(fuse, tmp_path, *words, *length, "--metric", "accuracy"))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_step_of_several_batches_is_that_of_one_large_batch(fuse: Fuse, tmp_path: Path, precision: str) -> None:
    """Without BatchNorm, which sees batches, and in the order of one epoch, which is the same."""
    (tmp_path / "made_up_nets.py").write_text(NETS.replace("nn.BatchNorm1d(width)", "nn.Flatten()"))
    found = []
    for words in (["--grad-accum", "4"], ["--sweep", "batch=64"]):
        sweep = ["--sweep", "lr=0.01,0.1", "--epochs", "2", "--precision", precision, "--force", "--metric", "accuracy"]
        code, _, _ = fuse(*sweep, *words, "-o", "all.json")
        assert code == 0
        found.append(json.loads((tmp_path / "all.json").read_text())["trials"])
    for one, other in zip(*found, strict=True):
        assert (one["steps"], other["steps"]) == (4, 4)
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=1e-5 if precision == "fp32" else 3e-3)


@pytest.mark.slow
def test_halving_ends_the_worst_and_fuses_the_rest(fuse: Fuse, tmp_path: Path) -> None:
    """Trials in two groups compete, and those left train as one; models are saved when their trial ends."""
    words = ["--sweep", "lr=log(1e-5,1e-1,8)", "--max-steps", "80", "--halving", "2", "--save", "models"]
    found = both(fuse, tmp_path, *words, data="batches")
    assert_same(found)
    code, out, _ = fuse(*words, "--max-models", "4", "--force", "-o", "-", "-o", "all.json", "-o", "trials.csv")
    assert code == 0
    trials = json.loads((tmp_path / "all.json").read_text())["trials"]
    assert sorted(trial["steps"] for trial in trials) == [10, 10, 10, 10, 20, 20, 40, 80]
    assert [trial["stopped"] for trial in trials] == ["" if trial["steps"] == 80 else "halving" for trial in trials]
    assert_same([trials, found[1]])
    assert "STEPS  STOPPED" in out
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["stopped"] for row in rows] == [trial["stopped"] for trial in trials]
    assert len(list((tmp_path / "models").iterdir())) == 8


@pytest.mark.slow
def test_a_trial_that_diverged_ends_and_the_others_are_not_disturbed(fuse: Fuse, tmp_path: Path) -> None:
    words = ["--sweep", "lr=0.001,1e30,0.01", "--optimizer", "sgd", "--max-steps", "400", "--loss", "mse_loss"]
    found = both(fuse, tmp_path, *words, data="regression")
    for trials in found:
        assert [trial["stopped"] for trial in trials] == ["", "diverged", ""]
        assert [trial["steps"] for trial in trials] == [400, 50, 400]
        assert (trials[1]["diverged"], trials[1]["loss"]) == (True, None)
    rest = [[trial for trial in trials if not trial["diverged"]] for trials in found]
    for one, other in zip(*rest, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-5)
    code, out, _ = fuse("--sweep", "lr=1e30,1e31", *words[2:], "--force", data="regression")
    assert code == 0
    assert out.count("diverged") == 4  # loss and reason of both


def test_a_schedule_of_other_names_for_each_trial_cannot_be_fused(fuse: Fuse) -> None:
    code, out, _ = fuse("--sweep", "lr=0.01,0.1", "--schedule", "made_up_nets:odd", "--force")
    assert code == 0
    assert "cannot be fused: --schedule: it has to give values of the same names for each model" in " ".join(
        out.split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--sweep", "lr=log(1e-3,1e-1)"],
            "how many values? give their number, as in lr=log(1e-3,1e-1,8), or",
        ),
        (["--sweep", "lr=log(1e-3,1e-1,0)"], "N has to be a whole number from 2"),
        (["--sweep", "lr=1,2", "--trials", "9"], "--trials 9: there are only 2 combinations"),
        (["--sweep", "optimizer=sgd,lion"], "unknown optimizer 'lion'; known: sgd, adam, adamw"),
        (["--sweep", "optimizer=adam", "--sweep", "momentum=0,1"], "has a parameter momentum; adam has lr"),
        (["--sweep", "nesterov=0,1", "--optimizer", "sgd"], "nesterov needs momentum, and no dampening"),
        (["--sweep", "lr=fast,slow"], "lr=fast: not a number"),
        (["--sweep", "seed=0,99999999999999999999"], "seed 99999999999999999999: torch takes whole numbers of 64 bits"),
        (["--sweep", "amsgrad=0,2"], "amsgrad=2: must be true or false"),
        (["--sweep", "seed=uniform(0,9,4)"], "0.0 is no whole number: give choice(0,1,2) or a list"),
        (["--sweep", "lr=1,2", "--schedule", "cosin"], "--schedule cosin: known are cosine, onecycle and MODULE:FUNC"),
        (["--sweep", "lr=1,2", "--schedule", "made_up_nets:make"], "made_up_nets:make: it has no parameter step;"),
        (["--sweep", "lr=1,2", "--halving", "1"], "--halving 1: must be 2 or more"),
        (["--sweep", "lr=1,2", "--first-rung", "5"], "--first-rung needs --halving N"),
        (
            ["--sweep", "lr=1,2", "--halving", "2", "--first-rung", "9"],
            "--first-rung 9: the training has 6 steps;",
        ),
    ],
)
def test_bad_input_is_one_line(fuse: Fuse, words: list[str], message: str) -> None:
    code, _, err = fuse(*words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
