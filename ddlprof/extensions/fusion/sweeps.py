"""The values of a sweep as they are typed, and its trials: every combination, or some that are drawn."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.extensions.fusion.hyperparameters import DEFAULTS, OPTIMIZER, Value, Values

MOST_TRIALS = 100_000
"""The most trials; more are taken for a typing error."""
_DIGITS = 6
"""Significant digits of values that are computed, so that a table can show them whole."""
_TRIES = 100
"""Draws in a row that were drawn before; then values are taken to have run out."""


@dataclass(frozen=True)
class UniformRange:
    """All numbers between two ends, evenly likely; with `is_log` their logarithms are."""

    text: str
    """As it was typed."""
    low: float
    high: float
    is_log: bool = False

    def at(self, share: float) -> float:
        """The number at this share of the way from `low` to `high`."""
        if self.is_log:
            found = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            found = self.low + share * (self.high - self.low)
        return min(max(float(f"{found:.{_DIGITS}g}"), self.low), self.high)

    def spread(self, number: int) -> list[Value]:
        """So many numbers at equal distances, the ends among them."""
        return [self.at(place / (number - 1)) for place in range(number)]


Choices: TypeAlias = "Sequence[Value] | UniformRange"
"""What a name may be: one of some values, or any number of a range."""


def parse_sweeps(texts: Sequence[str]) -> dict[str, Choices]:
    """Parses `["lr=log(1e-3,1e-1,5)", "width=64,128"]` to choices by name. Raises UserError."""
    sweeps: dict[str, Choices] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        name, listed = name.strip(), listed.strip()
        if not equals or not name or not listed:
            raise UserError(f"--sweep {text}: not of the form NAME=VALUE,VALUE,...")
        if name in sweeps:
            raise UserError(f"--sweep {name} is given twice: list its values once, with commas")
        sweeps[name] = _choices(text, listed)
    return sweeps


def _choices(text: str, listed: str) -> Choices:
    called = re.fullmatch(r"(\w*)\s*\((.*)\)", listed)
    if called is None:
        if "(" in listed or ")" in listed:
            raise UserError(f"--sweep {text}: log(...), uniform(...) or choice(...) stands alone, with both brackets")
        return _values(text, listed)
    kind, inner = called[1], called[2]
    if kind == "choice":
        return _values(text, inner)
    if kind not in ("log", "uniform"):
        raise UserError(
            f"--sweep {text}: no {kind or 'brackets'}(...){closest(kind, ('log', 'uniform', 'choice'))}; there are"
            " log(LOW,HIGH,N), uniform(LOW,HIGH,N) and choice(A,B,...)"
        )
    return _of_range(text, kind, [_value(part.strip()) for part in inner.split(",")])


def _of_range(text: str, kind: str, given: Sequence[Value]) -> Choices:
    form = f"{kind}(LOW,HIGH,N) for N values, or {kind}(LOW,HIGH) for draws"
    numbers = [float(each) for each in given if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(given) not in (2, 3) or len(numbers) != len(given) or not all(map(math.isfinite, numbers)):
        raise UserError(f"--sweep {text}: not of the form {form}")
    low, high = numbers[:2]
    if low >= high:
        raise UserError(f"--sweep {text}: LOW has to be less than HIGH in {form}")
    if kind == "log" and low <= 0:
        raise UserError(f"--sweep {text}: LOW has to be more than 0 in {form}; uniform may begin at 0")
    found = UniformRange(text, low, high, kind == "log")
    if len(given) == 2:
        return found
    number = given[2]
    if not isinstance(number, int) or not 2 <= number <= MOST_TRIALS:
        raise UserError(f"--sweep {text}: N has to be a whole number from 2 to {MOST_TRIALS:,} in {form}")
    spread = found.spread(number)
    if len(set(spread)) < number:
        raise UserError(f"--sweep {text}: LOW and HIGH are too close for {number} values of {_DIGITS} digits")
    return spread


def _values(text: str, listed: str) -> list[Value]:
    values = [_value(part.strip()) for part in listed.split(",")]
    if "" in values:
        raise UserError(f"--sweep {text}: a value is missing between commas")
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise UserError(f"--sweep {text}: {twice[0]} stands there twice")
    return values


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else number


def trials_of(sweeps: Mapping[str, Choices], draws: int | None = None, seed: int = 0) -> list[Values]:
    """The trials: every combination, or `draws` of them that are drawn. Raises UserError for fewer than two."""
    return combinations(sweeps) if draws is None else drawn(sweeps, draws, seed)


def combinations(sweeps: Mapping[str, Choices]) -> list[Values]:
    """Every combination; the last sweep changes fastest. Raises UserError if there are fewer than two."""
    listed: dict[str, Sequence[Value]] = {}
    for name, choices in sweeps.items():
        if isinstance(choices, UniformRange):
            raise UserError(
                f"--sweep {choices.text}: how many values? give their number, as in {choices.text[:-1]},8), or"
                " --trials N to draw"
            )
        listed[name] = choices
    number = math.prod(map(len, listed.values()))
    if number < 2:
        raise UserError("one trial: nothing to fuse; give --sweep NAME=VALUE,VALUE,... at least two values")
    if number > MOST_TRIALS:
        raise UserError(f"{number:,} trials: more than {MOST_TRIALS:,}; draw some of them with --trials N")
    return [dict(zip(listed, each, strict=True)) for each in itertools.product(*listed.values())]


def drawn(sweeps: Mapping[str, Choices], draws: int, seed: int) -> list[Values]:
    """So many different trials, each value drawn for itself. The same seed draws the same. Raises UserError."""
    if not sweeps:
        raise UserError(f"--trials {draws}: nothing to draw from; give --sweep NAME=log(LOW,HIGH) or another")
    if not 2 <= draws <= MOST_TRIALS:
        raise UserError(f"--trials {draws}: has to be from 2 to {MOST_TRIALS:,}")
    known = math.prod(math.inf if isinstance(each, UniformRange) else len(each) for each in sweeps.values())
    if draws > known:
        raise UserError(f"--trials {draws}: there are only {known} combinations; without --trials each is trained once")
    source = random.Random(seed)
    found: list[Values] = []
    seen: set[tuple[Value, ...]] = set()
    tries = 0
    while len(found) < draws:
        trial = {
            name: each.at(source.random()) if isinstance(each, UniformRange) else source.choice(each)
            for name, each in sweeps.items()
        }
        key = tuple(trial.values())
        tries += 1
        if key not in seen:
            seen.add(key)
            found.append(trial)
            tries = 0
        elif tries > _TRIES * draws:
            raise UserError(f"--trials {draws}: the ranges have fewer different values; make them wider")
    return found


def for_optimizers(trials: Sequence[Values], optimizer: str, others: Collection[str]) -> list[Values]:
    """The trials without values that their optimizer does not have, and then each only once.

    `optimizer`: that of trials without one of their own. `others`: names that mean something besides.
    """
    found: dict[tuple[tuple[str, Value], ...], Values] = {}
    for trial in trials:
        has = {*DEFAULTS[str(trial.get(OPTIMIZER, optimizer))], *others, OPTIMIZER}
        kept = {name: value for name, value in trial.items() if name in has}
        found.setdefault(tuple(kept.items()), kept)
    return list(found.values())
