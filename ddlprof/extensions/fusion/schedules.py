"""Schedules: the hyper-parameters of each update, computed for each model from values of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.extensions.fusion.hyperparameters import DEFAULTS, YES_OR_NO, Value, check_value
from ddlprof.launch.users_code import find, named_parameters, split_name, users_own

_COUNTS = ("step", "steps")
"""What a schedule is told besides values: the number of the update, from 0, and the number of all updates."""


def cosine(step: int, steps: int, lr: float, warmup: int = 0, final: float = 0.0) -> float:
    """Half a cosine from `lr` down to `final` times `lr`, after `warmup` updates in which the rate grows evenly.

    Without these it is torch's CosineAnnealingLR over all updates.
    """
    if step < warmup:
        return lr * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return lr * (final + (1 - final) * (1 + math.cos(math.pi * share)) / 2)


def onecycle(
    step: int, steps: int, lr: float, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> float:
    """torch's OneCycleLR of the learning rate: up to `lr` for `pct_start` of the updates, then down to almost 0."""
    lowest, top = lr / div_factor, pct_start * steps - 1
    if step <= top:
        return _between(lowest, lr, step / top if top > 0 else 1.0)
    return _between(lr, lowest / final_div_factor, (step - top) / max(1e-9, steps - 1 - top))


def _between(begin: float, end: float, share: float) -> float:
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * min(1.0, share)))


_KNOWN: dict[str, Callable[..., float]] = {"cosine": cosine, "onecycle": onecycle}


@dataclass(frozen=True)
class Schedule:
    """A function of the update and of a trial's values, which gives the learning rate, or a dict of several values."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    """The names of its parameters that a trial may set, without the counts."""

    def values_at(self, step: int, steps: int, optimizer: str, values: Mapping[str, Value]) -> dict[str, float]:
        """The hyper-parameters of update `step` of `steps`. Raises UserError for what the optimizer does not have."""
        known = {**DEFAULTS[optimizer], **values}
        given = {name: known[name] for name in self.parameters if name in known}
        found = users_own(self.name, lambda: self.function(step=step, steps=steps, **given))
        named = found if isinstance(found, Mapping) else {"lr": found}
        for name in named:
            if name not in DEFAULTS[optimizer] or name in YES_OR_NO:
                changing = [each for each in DEFAULTS[optimizer] if each not in YES_OR_NO]
                raise UserError(f"--schedule {self.name}: {optimizer} has no {name} to change: {', '.join(changing)}")
        # Numbers of numpy and torch have a method for Python's own.
        own = users_own(
            self.name, lambda: {name: each.item() if hasattr(each, "item") else each for name, each in named.items()}
        )
        try:
            return {name: check_value(name, value) for name, value in own.items()}
        except UserError as error:
            raise UserError(f"--schedule {self.name} gave {error}") from None


def named_schedule(text: str | None) -> Schedule | None:
    """The schedule of that name: cosine, onecycle, or MODULE:FUNCTION; None for none. Raises UserError."""
    if text is None:
        return None
    if ":" not in text and text not in _KNOWN:
        raise UserError(
            f"--schedule {text}: known are cosine, onecycle and MODULE:FUNCTION of step, steps and lr"
            f"{closest(text, _KNOWN)}"
        )
    function = _KNOWN.get(text) or find(*split_name(text, "MODULE:FUNCTION"))
    if not callable(function):
        raise UserError(f"--schedule {text}: it is no function")
    return as_schedule(function, text)


def as_schedule(function: Callable[..., Any], text: str | None = None) -> Schedule:
    """A function of step, steps and values as a schedule. `text`: its name as it was typed. Raises UserError."""
    text = text or str(getattr(function, "__name__", "the schedule"))
    parameters = named_parameters(function)
    lacking = [name for name in _COUNTS if name not in parameters]
    if lacking:
        raise UserError(f"--schedule {text}: it has no parameter {lacking[0]}; write it as f(step, steps, lr)")
    return Schedule(text, function, tuple(name for name in parameters if name not in _COUNTS))
