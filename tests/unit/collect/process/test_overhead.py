"""What is found from a sample, whatever the period of the loop."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType

import pytest

from ddlprof.collect.process.overhead import SampledCost, bare_hook

EVERY = 32
USUAL, EXPENSIVE = 3_000, 60_000
ASKING = 300
"""What it takes to read the clock."""


class Loop:
    """Steps of some events; `truth` is what they took."""

    def __init__(self) -> None:
        self.now = self.truth = self.asked = 0
        self.cost = SampledCost(EVERY, self.clock)

    def clock(self) -> int:
        self.asked += 1
        self.now += ASKING
        return self.now

    def step(self, events: int, each: int) -> None:
        for _ in range(events):
            begin = self.cost.begin()
            self.now += each
            self.truth += each
            self.cost.end(begin)

    @property
    def error(self) -> float:
        return self.cost.total_ns / self.truth - 1


@pytest.mark.parametrize("events", [1, 2, 4, 8, 15, 16, 17, 31, 32])
def test_steps_of_any_number_of_events(events: int) -> None:
    """One event of each step is the expensive one: sampling keeps no step with it."""
    loop = Loop()
    for _ in range(4096):
        loop.step(events - 1, USUAL)
        loop.step(1, EXPENSIVE)
    assert abs(loop.error) < 0.2


def test_the_gaps_have_no_pattern() -> None:
    """Every remainder by every small number is timed about equally often."""
    cost = SampledCost(EVERY, lambda: 1)
    timed = [index for index in range(400_000) if cost.begin()]
    for period in range(2, 65):
        counts = Counter(index % period for index in timed)
        assert max(counts.values()) < 1.5 * len(timed) / period
        assert min(counts[place] for place in range(period)) > 0.6 * len(timed) / period


def test_the_scripts_generator_is_left_alone() -> None:
    random.seed(0)
    expected = random.random()
    random.seed(0)
    Loop().step(100, USUAL)
    assert random.random() == expected


def test_it_is_a_function_around_another_that_asks_for_torch_compile() -> None:
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name if event == "call" else "in C")

    hook, before = bare_hook(), sys.getprofile()
    sys.setprofile(note)
    try:
        hook()
        hook()
    finally:
        sys.setprofile(before)
    assert calls.count("hook") == calls.count("is_compiling") == 2
