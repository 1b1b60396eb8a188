"""How often the stack is looked at, on a clock of the test's."""

from __future__ import annotations

import math

from ddlprof.collect.process.stack_schedule import FIRST_LOOK_S, FIRST_LOOKS, LOOK_S, StackSchedule

HOUR_S = 3600.0


def looks(hours: float, begin_s: float = 5.0, other: int = 0) -> list[float]:
    """The times of all looks, in seconds since the first, of a thread that wakes up when it should."""
    schedule, now, times = StackSchedule(), begin_s, list[float]()
    while now < begin_s + hours * HOUR_S:
        if schedule.is_due(now, other, 100):
            times.append(now - begin_s)
        now += schedule.pause_s(other, 100)
    assert schedule.looks == len(times)
    return times


def test_with_much_other_the_first_looks_are_more_and_later_ones_are_not() -> None:
    few, many = looks(2), looks(2, other=50)
    assert len([each for each in many if each < 20]) > 2 * len([each for each in few if each < 20])
    assert math.isclose(*(len([t for t in each if t > HOUR_S]) for each in (few, many)), rel_tol=0.1)


def test_a_thread_that_did_not_wake_up_does_not_catch_up() -> None:
    schedule = StackSchedule()
    due = [schedule.is_due(now, 0, 100) for now in (1.0, *(100 + number / 100 for number in range(100)))]
    assert 1 + 1 / FIRST_LOOK_S <= sum(due) <= 3 + 1 / FIRST_LOOK_S


def test_a_training_of_a_few_seconds_is_looked_at_often() -> None:
    times = looks(1 / 60)
    assert math.isclose(times[FIRST_LOOKS - 1], (FIRST_LOOKS - 1) * FIRST_LOOK_S)
    assert len([each for each in times if each < 5]) > 4 * 5 / LOOK_S
    assert math.isclose(times[-1] - times[-2], LOOK_S)
    assert len(times) < 2 * 60 / LOOK_S
