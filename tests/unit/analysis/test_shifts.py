"""The interval of a difference: of a ratio for what runs differ in by factors, of sums for what steps add."""

from __future__ import annotations

import math

import pytest

from ddlprof.analysis.shifts import FASTER, NONE, RATIO, ROOT, SLOWER, Shift, Side, Transform, shift
from ddlprof.analysis.uncertainty import MeanEstimate

MS = 1e6


def side(ms: float, error_ms: float = 0.0, noise: float = 0.01, whole_ms: float | None = None) -> Side:
    found = MeanEstimate(ms * MS, (error_ms * MS) ** 2, 8.0)
    return Side(found, noise, (ms if whole_ms is None else whole_ms) * MS)


def between(a: Side, b: Side, by: Transform = RATIO) -> Shift:
    found = shift(a, b, 0.025, by)
    assert found is not None
    return found


def test_a_step_that_is_a_seventeenth_is_faster_on_a_machine_whose_runs_differ_by_half() -> None:
    """Noise that is added to the times would reach far below nothing, and hide it."""
    found = between(side(291, noise=0.5), side(16.5, noise=0.5))
    assert found.word == FASTER
    assert found.low_ns is not None
    assert -291 * MS < found.low_ns < found.ns == -274.5 * MS


def test_equal_steps_are_not_told_apart_and_the_interval_is_one_of_ratios() -> None:
    found = between(side(10, noise=0.3), side(10, noise=0.3))
    assert found.word == NONE
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert (1 + found.low_ns / (10 * MS)) * (1 + found.high_ns / (10 * MS)) == pytest.approx(1)
    assert found.high_ns > -found.low_ns


def test_with_little_noise_it_is_the_interval_of_the_difference() -> None:
    """Two standard deviations of 1 % of 10 ms, as squares, times the quantile of 97.5 %."""
    for by in (RATIO, ROOT):
        found = between(side(10), side(11), by)
        assert found.low_ns == pytest.approx(MS - 2.2414 * math.hypot(0.1, 0.11) * MS, rel=0.05)


def test_a_mean_that_single_steps_make_is_not_a_factor() -> None:
    """One step of 100 s among 200 of 10 ms: its mean is as uncertain as it is long, however long that is."""
    assert between(side(10), side(510, error_ms=500)).word == NONE
    assert between(side(510, error_ms=500), side(10)).word == NONE


def test_a_part_that_is_nothing_on_one_side() -> None:
    assert between(side(0, whole_ms=10), side(1, whole_ms=11), ROOT).word == SLOWER
    gone = between(side(1, whole_ms=11), side(0, whole_ms=10), ROOT)
    assert (gone.word, gone.ns) == (FASTER, -MS)
    assert gone.low_ns == pytest.approx(-MS, rel=1e-3)
    assert between(side(0, whole_ms=10), side(0, whole_ms=10), ROOT) == Shift(0, 0, 0)


def test_too_few_steps_on_a_side() -> None:
    assert shift(None, side(1), 0.025) is None
