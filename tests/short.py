"""Which cases of a test the short suite has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_short(cases: Iterable[Any], short: int = 1) -> list[Any]:
    """Parameters of a test: the first ones are in the short suite, the rest is slow."""
    return [
        case if number < short else pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
