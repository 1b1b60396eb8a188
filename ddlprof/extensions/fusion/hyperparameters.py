"""The hyper-parameters of the optimizers, of which each model may have its own values, and groups of trials."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest

Value: TypeAlias = "int | float | bool | str"
Values: TypeAlias = "dict[str, Value]"
OPTIMIZER = "optimizer"
"""The name of a sweep over optimizers. Trials of one optimizer can train as one."""


def partition(trials: Sequence[Values], shared: Collection[str]) -> list[tuple[Values, list[int]]]:
    """Trials that can train as one, as they agree on all values in `shared`: these values, and the trials' numbers."""
    parts: dict[frozenset[tuple[str, Value]], tuple[Values, list[int]]] = {}
    for number, trial in enumerate(trials):
        common = {name: value for name, value in trial.items() if name in shared}
        parts.setdefault(frozenset(common.items()), (common, []))[1].append(number)
    return list(parts.values())


def chunks(numbers: Sequence[int], most: int) -> list[list[int]]:
    """Splits the numbers into as few groups of at most `most` as possible, of nearly equal sizes."""
    groups = -(-len(numbers) // most)
    size, larger = divmod(len(numbers), groups)
    found, begin = [], 0
    for group in range(groups):
        end = begin + size + (group < larger)
        found.append(list(numbers[begin:end]))
        begin = end
    return found


_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": 0.0}
DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0.0},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 1e-2},
}
"""The hyper-parameters of each optimizer, with the defaults of torch.optim. Those of `YES_OR_NO` are 0 or 1."""

_BELOW_ONE = ("beta1", "beta2")
YES_OR_NO = ("nesterov", "amsgrad")


def defaults_of(optimizer: str) -> dict[str, float]:
    """The defaults of an optimizer. Raises UserError if it is not known."""
    if optimizer not in DEFAULTS:
        raise UserError(f"unknown optimizer {optimizer!r}; known: {', '.join(DEFAULTS)}")
    return DEFAULTS[optimizer]


def check_value(name: str, value: object) -> float:
    """The value of an optimizer's hyper-parameter. Raises UserError for values that torch.optim would refuse."""
    if isinstance(value, bool):
        value = float(value)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{name}={value}: not a number")
    if value < 0:
        raise UserError(f"{name}={value}: must not be negative")
    if name in _BELOW_ONE and value >= 1:
        raise UserError(f"{name}={value}: must be less than 1")
    if name in YES_OR_NO and value not in (0, 1):
        raise UserError(f"{name}={value}: must be true or false")
    return float(value)


def per_model(optimizer: str, models: int, given: Mapping[str, float | Sequence[float]]) -> dict[str, list[float]]:
    """Each hyper-parameter of the optimizer, with one value for each model. Raises UserError for invalid ones."""
    values = {name: [value] * models for name, value in defaults_of(optimizer).items()}
    for name, value in given.items():
        if name not in values:
            raise UserError(f"{optimizer} has no {name}{closest(name, values)}; it has {', '.join(values)}")
        each = list(value) if isinstance(value, Iterable) else [value] * models
        if len(each) != models:
            raise UserError(f"{name}: {len(each)} values for {models} models")
        values[name] = [check_value(name, one) for one in each]
    if optimizer == "sgd":
        for nesterov, momentum, dampening in zip(
            values["nesterov"], values["momentum"], values["dampening"], strict=True
        ):
            if nesterov and (not momentum or dampening):
                raise UserError("nesterov needs momentum, and no dampening")
    return values
