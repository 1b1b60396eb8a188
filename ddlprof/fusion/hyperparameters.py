"""The trials of a sweep (all combinations of its values), and the hyper-parameters of the optimizers.

Models that train as one may each have their own values of the optimizers' hyper-parameters.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from ddlprof.base.errors import UserError

Value: TypeAlias = "int | float | bool | str"
Values: TypeAlias = "dict[str, Value]"
MOST_TRIALS = 100_000
"""The most trials; more are taken for a typing error."""


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[Value]]:
    """Parses `["lr=1e-3,3e-3", "width=64"]` to values by name. Raises UserError."""
    sweeps: dict[str, list[Value]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        name = name.strip()
        if not equals or not name or not listed.strip():
            raise UserError(f"--sweep {text}: not of the form NAME=VALUE,VALUE,...")
        if name in sweeps:
            raise UserError(f"--sweep {name} is given twice: list its values once, with commas")
        values = [_value(part.strip()) for part in listed.split(",")]
        if "" in values:
            raise UserError(f"--sweep {text}: a value is missing between commas")
        twice = [value for number, value in enumerate(values) if value in values[:number]]
        if twice:
            raise UserError(f"--sweep {text}: {twice[0]} stands there twice")
        sweeps[name] = values
    return sweeps


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def check_sweeps(texts: Sequence[str]) -> dict[str, list[Value]]:
    """The sweeps of the command line. Raises UserError if they cannot be read or have only one trial."""
    sweeps = parse_sweeps(texts)
    combinations(sweeps)
    return sweeps


def combinations(sweeps: Mapping[str, Sequence[Value]]) -> list[Values]:
    """All trials; the last sweep changes fastest. Raises UserError if there are fewer than two."""
    number = 1
    for values in sweeps.values():
        number *= len(values)
    if number < 2:
        raise UserError("one trial: nothing to fuse; give --sweep NAME=VALUE,VALUE,... at least two values")
    if number > MOST_TRIALS:
        raise UserError(f"{number:,} trials: more than {MOST_TRIALS:,}")
    return [dict(zip(sweeps, each, strict=True)) for each in itertools.product(*sweeps.values())]


def partition(trials: Sequence[Values], shared: Collection[str]) -> list[tuple[Values, list[int]]]:
    """Trials that can train as one, as they agree on all values in `shared`: these values, and the trials' numbers."""
    parts: dict[tuple[Value, ...], tuple[Values, list[int]]] = {}
    for number, trial in enumerate(trials):
        common = {name: value for name, value in trial.items() if name in shared}
        parts.setdefault(tuple(common.values()), (common, []))[1].append(number)
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


_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": 0.0},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 1e-2},
}
"""The hyper-parameters of each optimizer, with the defaults of torch.optim. `nesterov` is 0 or 1."""

_BELOW_ONE = ("beta1", "beta2")


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
    if name == "nesterov" and value not in (0, 1):
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


def closest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the closest known name; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
