"""What chooses the values of trials elsewhere, with one interface: asked for several at once, told of all together."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.hyperparameters import Value, Values

Space = Callable[[Any], Mapping[str, Any]] | Mapping[str, Any]
"""For Optuna: a function that suggests values on a trial, or distributions by name."""


class Tuner(Protocol):
    """Chooses values and learns from what became of them."""

    def ask(self, number: int) -> list[Values]:
        """The values of so many further trials, or of fewer where there are no more."""

    def tell(self, results: Sequence[float | None]) -> None:
        """The result of each trial that was asked last; None, or none for it: it diverged or could not be trained."""


def tuner_of(study: Any, space: Space | None) -> Tuner:
    """A study of Optuna, or dicts. Raises UserError."""
    if hasattr(study, "ask") and hasattr(study, "tell"):
        return _Optuna(study, space)
    if space is not None:
        raise UserError("ask_tell: only a study of Optuna takes a space")
    if isinstance(study, Iterable) and not isinstance(study, Mapping):
        return _Listed(study)
    raise UserError(f"ask_tell: {type(study).__name__} is no study of Optuna and no iterable of dicts")


def check_direction(study: Any, objective: str) -> None:
    """Raises UserError for a study that looks for the largest loss, or for the best of several numbers."""
    directions = [each.name for each in getattr(study, "directions", ())]
    if len(directions) > 1:
        raise UserError(f"ask_tell: the study has {len(directions)} objectives, but is told only {objective}")
    if objective != "metric" and "MAXIMIZE" in directions:
        raise UserError(f"ask_tell: the study looks for the largest {objective}: minimize, or give objective='metric'")


class _Optuna:
    def __init__(self, study: Any, space: Space | None) -> None:
        if space is None:
            raise UserError("ask_tell: Optuna needs a space: a function of a trial that returns its values")
        if not callable(space) and not isinstance(space, Mapping):
            raise UserError(f"ask_tell: space is {type(space).__name__}: it has to be a function or a dict")
        self._study, self._space = study, space
        self._asked: list[Any] = []

    def ask(self, number: int) -> list[Values]:
        found = []
        self._asked = []
        for _ in range(number):
            trial = self._study.ask() if callable(self._space) else self._study.ask(dict(self._space))
            self._asked.append(trial)  # before what may fail
            found.append(plain(self._space(trial) if callable(self._space) else trial.params))
        return found

    def tell(self, results: Sequence[float | None]) -> None:
        failed = importlib.import_module("optuna").trial.TrialState.FAIL
        for trial, result in itertools.zip_longest(self._asked, results):
            if result is None:
                self._study.tell(trial, state=failed)
            else:
                self._study.tell(trial, result)


class _Listed:
    """Values that are known from the start: a list of dicts, or scikit-learn's ParameterGrid or ParameterSampler."""

    def __init__(self, listed: Iterable[Mapping[str, Any]]) -> None:
        self._left: Iterator[Mapping[str, Any]] = iter(listed)

    def ask(self, number: int) -> list[Values]:
        return [plain(each) for each in itertools.islice(self._left, number)]

    def tell(self, results: Sequence[float | None]) -> None:
        """Nothing is learned from them."""


def plain(values: Any) -> Values:
    """The values as Python's own; numpy's numbers have a method for it. Raises UserError for others."""
    if not isinstance(values, Mapping):
        raise UserError(f"ask_tell: a trial is {type(values).__name__}: it has to be a dict of values by name")
    found: dict[str, Value] = {}
    for name, value in values.items():
        own = value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
        if not isinstance(own, (bool, int, float, str)):
            raise UserError(f"ask_tell: {name} is {type(value).__name__}: it has to be a number, a text or a bool")
        found[name] = own
    return found
