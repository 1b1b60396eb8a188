"""The cost of a hook's wrapper."""

from __future__ import annotations

import itertools
import sys
from types import FrameType

from ddlprof.collect.process.wrapper_cost import REPEATS, wrapper_cost_ns


def test_half_of_the_difference_that_the_wrapper_makes() -> None:
    # Readings of a made-up clock: the wrapped call takes 900 ns, the bare one 100.
    times = itertools.accumulate(itertools.cycle((0, 900, 0, 100)))
    assert wrapper_cost_ns(lambda: next(times)) == 400


def test_noise_makes_no_negative_cost() -> None:
    times = itertools.accumulate(itertools.cycle((0, 100, 0, 900)))
    assert wrapper_cost_ns(lambda: next(times)) == 0


def test_what_is_timed_is_a_wrapped_call_against_a_bare_one() -> None:
    """On a clock that moves on with each call of a Python function: the wrapper and its two events are three more."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        cost = wrapper_cost_ns(lambda: 1000 * calls)
    finally:
        sys.setprofile(before)
    assert cost == 3 * 1000 // 2
    assert calls >= 2 * REPEATS
