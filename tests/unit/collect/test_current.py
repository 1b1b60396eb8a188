"""The means of the latest steps."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.collect.current import MOST_STEPS, RecentSteps
from tests.golden.runs import step


def test_means_are_of_the_last_steps() -> None:
    recent = RecentSteps()
    assert recent.means_s(10) == {}
    for number in range(20):
        recent.add(step(number, compute_ms=1 if number < 10 else 3))
    assert recent.means_s(10)["compute_s"] == 3e-3
    assert recent.means_s(20)["compute_s"] == 2e-3
    assert recent.means_s(10_000)["step_s"] == 4e-3


def test_what_was_not_measured_is_not_in_it() -> None:
    recent = RecentSteps()
    recent.add(step(0))
    recent.add(step(1, data_ms=None))  # another kind of step: no common mean
    recent.add(step(2, data_ms=None, compute_ms=10))
    means = recent.means_s(3)
    assert "data_s" not in means
    assert means["compute_s"] == 9e-3
    recent.add(replace(step(3, data_ms=None), compute_forward_ns=5))
    assert "compute_forward_s" not in recent.means_s(4)
    assert recent.means_s(1)["compute_forward_s"] == 5e-9


def test_memory_is_bounded() -> None:
    recent = RecentSteps()
    for number in range(MOST_STEPS + 10):
        recent.add(step(number))
    assert len(recent._rows) == MOST_STEPS
