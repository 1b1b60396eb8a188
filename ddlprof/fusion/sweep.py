"""The trials of a sweep: every combination of its values, and which of them can train as one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from ddlprof.base.errors import UserError

Value: TypeAlias = "int | float | bool | str"
Values: TypeAlias = "dict[str, Value]"
MOST_TRIALS = 100_000
"""More are a slip of the keyboard."""


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[Value]]:
    """`["lr=1e-3,3e-3", "width=64"]` as values by name. Raises UserError."""
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
    """The sweeps that the options ask for. Raises UserError where they cannot be read or have one trial."""
    sweeps = parse_sweeps(texts)
    combinations(sweeps)
    return sweeps


def combinations(sweeps: Mapping[str, Sequence[Value]]) -> list[Values]:
    """Every trial, the last sweep changing fastest. Raises UserError where there are not at least two."""
    number = 1
    for values in sweeps.values():
        number *= len(values)
    if number < 2:
        raise UserError("one trial: nothing to fuse; give --sweep NAME=VALUE,VALUE,... at least two values")
    if number > MOST_TRIALS:
        raise UserError(f"{number:,} trials: more than {MOST_TRIALS:,}")
    return [dict(zip(sweeps, each, strict=True)) for each in itertools.product(*sweeps.values())]


def partition(trials: Sequence[Values], shared: Collection[str]) -> list[tuple[Values, list[int]]]:
    """Trials that can train as one: those that agree on every value in `shared`, as the values and their numbers."""
    parts: dict[tuple[Value, ...], tuple[Values, list[int]]] = {}
    for number, trial in enumerate(trials):
        common = {name: value for name, value in trial.items() if name in shared}
        parts.setdefault(tuple(common.values()), (common, []))[1].append(number)
    return list(parts.values())


def chunks(numbers: Sequence[int], most: int) -> list[list[int]]:
    """The numbers in as few groups of at most `most` as can be, as even as can be."""
    groups = -(-len(numbers) // most)
    size, larger = divmod(len(numbers), groups)
    found, begin = [], 0
    for group in range(groups):
        end = begin + size + (group < larger)
        found.append(list(numbers[begin:end]))
        begin = end
    return found
