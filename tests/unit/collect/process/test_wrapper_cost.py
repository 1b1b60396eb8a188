"""The cost of a hook's wrapper."""

from __future__ import annotations

import itertools

from ddlprof.collect.process.wrapper_cost import REPEATS, wrapper_cost_ns


def test_half_of_the_difference_that_the_wrapper_makes() -> None:
    # Readings of a made-up clock: the wrapped call takes 900 ns, the bare one 100.
    times = itertools.accumulate(itertools.cycle((0, 900, 0, 100)))
    assert wrapper_cost_ns(lambda: next(times)) == 400


def test_noise_makes_no_negative_cost() -> None:
    times = itertools.accumulate(itertools.cycle((0, 100, 0, 900)))
    assert wrapper_cost_ns(lambda: next(times)) == 0


def test_it_is_small_and_real() -> None:
    assert REPEATS % 2 == 1
    assert 0 <= wrapper_cost_ns() < 1_000_000
