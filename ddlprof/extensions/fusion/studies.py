"""The trials of a study elsewhere (Optuna), several at once as one training, and told together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.hyperparameters import defaults_of
from ddlprof.extensions.fusion.job import run_trials
from ddlprof.extensions.fusion.loop import SweepLength
from ddlprof.extensions.fusion.planner import FuseOptions
from ddlprof.extensions.fusion.results import Trial
from ddlprof.extensions.fusion.schedules import as_schedule, named_schedule
from ddlprof.extensions.fusion.task import PRECISIONS, Task, device_of, named_loss, named_metric
from ddlprof.extensions.fusion.tuners import Space, check_direction, tuner_of

_OBJECTIVES = ("loss", "eval_loss", "metric")


def ask_tell(
    study: Any,
    factory: Callable[..., nn.Module],
    data: Any,
    space: Space | None = None,
    *,
    trials: int,
    at_once: int = 8,
    objective: str | None = None,
    max_steps: int | None = None,
    epochs: int = 1,
    loss: str | Callable[..., Any] = "cross_entropy",
    metric: str | Callable[..., Any] | None = None,
    evaluation: Any = None,
    optimizer: str = "adam",
    schedule: str | Callable[..., Any] | None = None,
    seed: int = 0,
    device: str = "cpu",
    clip_norm: float | None = None,
    precision: str = "fp32",
    grad_accum: int = 1,
    param_groups: Callable[[nn.Module], Any] | None = None,
) -> list[Trial]:
    """Trains `trials` trials of a study, `at_once` of them as one, and tells the study of these together.

    `study` is a study of Optuna with `space`, a function of its trial that returns the values of ours; or dicts of
    values, such as scikit-learn's ParameterGrid. Values have the names of `ddlprof fuse --sweep`. Trials that cannot
    share a training, such as those of other shapes, are trained one after another. The study is told the `objective`:
    `loss`, `eval_loss` or `metric`, by default `eval_loss`, or `loss` where there is neither an evaluation nor a
    metric. A trial that diverges is told as failed. The other arguments are those of `ddlprof fuse`.

    Raises UserError.
    """
    _check_numbers(trials=trials, at_once=at_once, epochs=epochs, grad_accum=grad_accum, max_steps=max_steps)
    _check_functions(factory=factory, loss=loss, metric=metric, schedule=schedule, param_groups=param_groups)
    _check_step(optimizer, precision, clip_norm)
    task = Task(
        factory=factory,
        factory_name=getattr(factory, "__name__", "the factory"),
        data=data,
        data_name=getattr(data, "__name__", "the data"),
        loss=named_loss(loss) if isinstance(loss, str) else loss,
        metric=named_metric(metric) if isinstance(metric, str) or metric is None else metric,
        evaluation=evaluation,
        evaluation_name=getattr(evaluation, "__name__", "the evaluation"),
        optimizer=optimizer,
        seed=seed,
        device=torch.device(device_of(device)),
        clip_norm=clip_norm,
        precision=precision,
        schedule=as_schedule(schedule) if callable(schedule) else named_schedule(schedule),
        grad_accum=grad_accum,
        param_groups=param_groups,
    )
    evaluates = evaluation is not None or metric is not None
    options = FuseOptions(SweepLength(max_steps, epochs), evaluate=evaluates, is_timed=False)
    return _ask_and_tell(study, space, task, options, trials, at_once, _objective(objective, task, evaluates))


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or number < 1):
            raise UserError(f"ask_tell: {name} {number}: has to be a whole number of at least 1")


def _check_functions(factory: Any, **named: Any) -> None:
    if not callable(factory) or isinstance(factory, nn.Module):
        raise UserError("ask_tell: factory is no function: it has to return a new model at each call")
    for name, given in named.items():
        if given is not None and not isinstance(given, str) and not callable(given):
            raise UserError(f"ask_tell: {name} is {type(given).__name__}: it has to be a name or a function")


def _check_step(optimizer: str, precision: str, clip_norm: float | None) -> None:
    defaults_of(optimizer)
    if precision not in PRECISIONS:
        raise UserError(f"ask_tell: precision {precision}: known are {', '.join(PRECISIONS)}")
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise UserError(f"ask_tell: clip_norm {clip_norm:g}: must be more than zero")


def _objective(named: str | None, task: Task, evaluates: bool) -> str:
    if named is None:
        return "eval_loss" if evaluates else "loss"
    if named not in _OBJECTIVES:
        raise UserError(f"ask_tell: objective {named}: known are {', '.join(_OBJECTIVES)}")
    if named == "metric" and task.metric is None:
        raise UserError("ask_tell: objective metric needs metric=..., such as accuracy")
    if named == "eval_loss" and not evaluates:
        raise UserError("ask_tell: objective eval_loss needs evaluation=... or metric=...")
    return named


def _ask_and_tell(
    study: Any, space: Space | None, task: Task, options: FuseOptions, trials: int, at_once: int, objective: str
) -> list[Trial]:
    tuner = tuner_of(study, space)
    check_direction(study, objective)
    found: list[Trial] = []
    while len(found) < trials:
        told: list[float | None] = []
        try:
            asked = tuner.ask(min(at_once, trials - len(found)))
            if not asked:
                break
            task.check_names(dict.fromkeys(name for each in asked for name in each), _optimizers(task, asked))
            trained = run_trials(task, asked, options).trials
            told = [None if each.diverged else getattr(each, objective) for each in trained]
        finally:  # also where the user's code failed: no trial of the study stays open
            tuner.tell(told)
        found += [replace(each, number=len(found) + each.number) for each in trained]
    return found


def _optimizers(task: Task, asked: list[Any]) -> list[str]:
    return list(dict.fromkeys(task.optimizer_of(each) for each in asked))
