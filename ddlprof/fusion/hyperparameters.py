"""The hyper-parameters of the optimizers: those that models trained as one may each have a value of their own for."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

from ddlprof.base.errors import UserError

_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0.0},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 1e-2},
}
"""What each optimizer takes, and the defaults of torch.optim. `nesterov` is 0 or 1."""

_BELOW_ONE = ("beta1", "beta2")


def defaults_of(optimizer: str) -> dict[str, float]:
    """Raises UserError for an optimizer that is not known."""
    if optimizer not in DEFAULTS:
        raise UserError(f"unknown optimizer {optimizer!r}; known: {', '.join(DEFAULTS)}")
    return DEFAULTS[optimizer]


def check_value(name: str, value: object) -> float:
    """The value of an optimizer's hyper-parameter. Raises UserError for what torch.optim would refuse."""
    if isinstance(value, bool):
        value = float(value)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{name}={value}: not a number")
    if value < 0:
        raise UserError(f"{name}={value}: must not be negative")
    if name in _BELOW_ONE and value >= 1:
        raise UserError(f"{name}={value}: must be less than 1")
    if name == "nesterov" and value not in (0, 1):
        raise UserError(f"{name}={value}: must be true or false")
    return float(value)


def per_model(optimizer: str, models: int, given: Mapping[str, float | Sequence[float]]) -> dict[str, list[float]]:
    """Each hyper-parameter of the optimizer with one value for each model. Raises UserError for what it cannot use."""
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


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
