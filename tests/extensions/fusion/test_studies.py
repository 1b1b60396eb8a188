"""Trials of tuners elsewhere, trained several at once. The first tests are examples of their use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion import ask_tell
from ddlprof.extensions.fusion.tuners import plain, tuner_of

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def make(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))


def batches(batch: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in torch.randperm(len(X)).split(batch):
        yield X[rows], Y[rows]


def test_an_optuna_trial_that_diverges_has_failed_and_none_stays_open() -> None:
    optuna = pytest.importorskip("optuna", reason="a study of Optuna needs Optuna")
    study = optuna.create_study()
    study.enqueue_trial({"lr": 0.01})
    study.enqueue_trial({"lr": 1e30})
    space = {"lr": optuna.distributions.FloatDistribution(1e-3, 1e30, log=True)}
    data = [(X, X[:, :2])]
    ask_tell(study, make, data, space, trials=2, max_steps=60, loss="mse_loss", optimizer="sgd")
    states = optuna.trial.TrialState
    assert [each.state for each in study.trials] == [states.COMPLETE, states.FAIL]
    with pytest.raises(UserError, match="has a parameter rate"):
        ask_tell(study, make, data, lambda trial: {"rate": trial.suggest_int("rate", 1, 9)}, trials=2)
    assert {each.state for each in study.trials[2:]} == {states.FAIL}


def test_no_trial_stays_open_when_asking_fails() -> None:
    optuna = pytest.importorskip("optuna", reason="a study of Optuna needs Optuna")
    study = optuna.create_study()

    def space(trial: Any) -> dict[str, Any]:
        if trial.number == 2:
            raise ValueError("no more")
        return {"lr": trial.suggest_float("lr", 1e-3, 1e-1), "nothing": None if trial.number == 3 else 1}

    for message in ("no more", "nothing is NoneType"):
        with pytest.raises((ValueError, UserError), match=message):
            ask_tell(study, make, batches, space, trials=4)
    assert [each.state for each in study.trials] == [optuna.trial.TrialState.FAIL] * 4


@pytest.mark.slow
def test_trials_of_other_names_have_the_defaults() -> None:
    strong = {"lr": 0.1, "weight_decay": 5.0}
    found = {}
    for study in ([{"lr": 0.1}, strong], [strong, {"lr": 0.1}]):
        for at_once in (1, 2):
            trained = ask_tell(study, make, batches, trials=2, at_once=at_once, epochs=3, optimizer="sgd")
            assert [each.fused for each in trained] == [at_once == 2] * 2
            found[at_once] = [each.loss for each in trained]
        assert found[2] == pytest.approx(found[1])
        assert abs((found[1][0] or 0.0) - (found[1][1] or 0.0)) > 1e-3


@pytest.mark.slow
def test_the_grid_and_the_sampler_of_scikit_learn() -> None:
    chosen = pytest.importorskip("sklearn.model_selection")
    grid = chosen.ParameterGrid({"lr": [0.01, 0.1], "width": [4, 6]})
    found = ask_tell(grid, make, batches, trials=99, objective="metric", metric="accuracy")
    assert [each.values for each in found] == list(grid)
    assert [each.fused for each in found] == [True] * 4
    drawn = chosen.ParameterSampler({"lr": [0.1, 0.2, 0.3], "optimizer": ["sgd", "adam"]}, 4, random_state=0)
    assert len(ask_tell(drawn, make, batches, trials=4, schedule="cosine", grad_accum=2)) == 4


def test_a_study_for_the_largest_loss_or_of_several_objectives_is_refused() -> None:
    optuna = pytest.importorskip("optuna", reason="a study of Optuna needs Optuna")
    space = {"lr": optuna.distributions.FloatDistribution(1e-3, 1e-1)}
    largest, several = optuna.create_study(direction="maximize"), optuna.create_study(directions=["minimize"] * 2)
    with pytest.raises(UserError, match="looks for the largest loss: minimize, or give objective='metric'"):
        ask_tell(largest, make, batches, space, trials=2)
    with pytest.raises(UserError, match="the study has 2 objectives, but is told only loss"):
        ask_tell(several, make, batches, space, trials=2)
    ask_tell(largest, make, batches, space, trials=2, metric="accuracy", objective="metric")
    assert largest.best_value == max(each.value for each in largest.trials)


@pytest.mark.parametrize(
    ("study", "more", "message"),
    [
        (3, {}, "int is no study of Optuna and no iterable"),
        ([], {"space": dict}, "only a study of Optuna takes a space"),
        ("abc", {}, "a trial is str: it has to be a dict of values by name"),
        ([{"lr": torch.ones(2)}], {}, "lr is Tensor: it has to be a number"),
        ([{"lr": [1]}], {}, "lr is list: it has to be a number, a text or a bool"),
        ([{"lr": 0.1}], {"trials": 0}, "trials 0: has to be a whole number of at least 1"),
        ([{"lr": 0.1}], {"at_once": 1.5}, "at_once 1.5: has to be a whole number"),
        ([{"lr": 0.1}], {"epochs": 0}, "epochs 0: has to be"),
        ([{"lr": 0.1}], {"max_steps": 0}, "max_steps 0: has to be"),
        ([{"lr": 0.1}], {"grad_accum": 0}, "grad_accum 0: has to be"),
        ([{"lr": 0.1}], {"clip_norm": -1.0}, "clip_norm -1: must be more than zero"),
        ([{"lr": 0.1}], {"device": "gpu"}, "device gpu: known are auto, cpu and cuda"),
        ([{"lr": 0.1}], {"loss": 3}, "loss is int: it has to be a name or a function"),
        ([{"lr": 0.1}], {"metric": 3}, "metric is int"),
        ([{"lr": 0.1}], {"schedule": 3}, "schedule is int"),
        ([{"lr": 0.1}], {"factory": make()}, "factory is no function: it has to return a new model"),
        ([{"lr": 0.1}], {"objective": "speed"}, "objective speed: known are loss, eval_loss, metric"),
        ([{"lr": 0.1}], {"objective": "metric"}, "objective metric needs metric=..."),
        ([{"lr": 0.1}], {"objective": "eval_loss"}, "needs evaluation=... or metric=..."),
        ([{"lr": 0.1}], {"precision": "int8"}, "precision int8: known are fp32"),
        ([{"optimizer": "lion"}], {}, "unknown optimizer 'lion'"),
        ([{"lr": 0.1}], {"schedule": lambda step: 1.0}, "has no parameter steps"),
    ],
)
def test_bad_input_is_one_line(study: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        ask_tell(study, **{"factory": make, "data": batches, "trials": 2, **more})
    assert "\n" not in str(raised.value)


def test_a_study_of_optuna_needs_a_space_and_numbers_of_numpy_are_numbers() -> None:
    class Study:
        ask = tell = None

    with pytest.raises(UserError, match="Optuna needs a space"):
        tuner_of(Study(), None)
    with pytest.raises(UserError, match="space is int: it has to be a function or a dict"):
        tuner_of(Study(), 3)  # type: ignore[arg-type]
    numpy = pytest.importorskip("numpy")
    assert plain({"lr": numpy.float64(0.5), "width": numpy.int64(3)}) == {"lr": 0.5, "width": 3}
