"""Lists of numbers as options of `ddlprof cluster simulate`."""

from __future__ import annotations

import math
import re

from ddlprof.base.errors import UserError
from ddlprof.cli.described_job import words

_MOST_SEEDS = 10_000
_MOST_NUMBERS = 100
_LARGEST_SEED = 2**32


def seeds(text: str) -> list[int]:
    """`0`, `0,7` or `0-4`, each once. Raises UserError for anything else."""
    found: list[int] = []
    for word in words(text):
        parts = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", word, re.ASCII)
        first, last = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
        if not first <= last <= _LARGEST_SEED or len(found) + last - first >= _MOST_SEEDS:
            raise UserError(f"--seed {text!r}: give whole numbers or ranges, as in 0,7 or 0-4")
        found += range(first, last + 1)
    if not found:
        raise UserError(f"--seed {text!r}: give whole numbers or ranges, as in 0,7 or 0-4")
    return list(dict.fromkeys(found))


def numbers(text: str, option: str, low: float, high: float) -> list[float]:
    """`0.5,0.9`, each once, from `low` to `high`. Raises UserError naming the option."""
    try:
        found = [float(word) for word in words(text)]
    except ValueError:
        found = []
    if not found or len(found) > _MOST_NUMBERS or not all(low <= number <= high for number in found):
        most = f"to {high:g}" if high < math.inf else "up"
        raise UserError(f"{option} {text!r}: give numbers from {low:g} {most}, as in 0.5,0.9")
    return list(dict.fromkeys(found))


def names(text: str) -> list[str]:
    """`fifo,las`, each once."""
    return list(dict.fromkeys(words(text)))
