"""What the tests of operators share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

_STEP_NS = 300_000_000


@pytest.fixture
def slow_clock() -> Callable[[], int]:
    """A clock on which 0.3 s pass between any two looks."""
    return count(_STEP_NS, _STEP_NS).__next__
