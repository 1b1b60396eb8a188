"""The figures of a simulation, on outcomes made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlprof.extensions.cluster.jobs import Job, JobOutcome, Simulated
from ddlprof.extensions.cluster.simulation.metrics import (
    completion_cdf,
    jain_index,
    job_rows,
    longest_waits,
    over_time,
    slowdowns,
    summary,
)


def outcome(name: str, submit_s: float, end_s: float, gpus: int = 2, ideal_s: float | None = 50.0) -> JobOutcome:
    job = Job(name, submit_s, gpus, 50, 1, 1.0)
    return JobOutcome(job, submit_s + 10, end_s, 3600.0 * gpus, 900.0, 2, 10.0, ideal_s)


TWO = Simulated([outcome("a", 0, 100), outcome("b", 0, 200)], [(0, 4, 1), (100, 2, 0), (200, 0, 0)])


def test_the_longest_waits_come_first_and_jobs_that_never_waited_are_left_out() -> None:
    waits = {"a": 10.0, "b": 0.0, "c": 700.0, "d": 10.0}
    outcomes = [replace(outcome(name, 0, 1000), waited_s=waited_s) for name, waited_s in waits.items()]
    found = longest_waits(Simulated(outcomes, TWO.usage))
    assert [(each.job_id, each.waited_s, each.slowdown) for each in found] == [
        ("c", 700, 20),
        ("a", 10, 20),
        ("d", 10, 20),
    ]
    assert [each.job_id for each in longest_waits(Simulated(outcomes, TWO.usage), most=1)] == ["c"]
    assert summary(Simulated(outcomes, TWO.usage), 4).wait_longest_s == 700


def test_jain_is_one_for_equals_and_one_nth_where_one_bears_it_all() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([0.0, 0.0, 5.0])) == pytest.approx(1 / 3)
    assert summary(TWO, 4).jain == pytest.approx((2 + 4) ** 2 / (2 * (4 + 16)))


def test_what_nobody_can_tell_is_not_known() -> None:
    simulated = Simulated([outcome("a", 0, 100), outcome("b", 0, 90, ideal_s=None)], TWO.usage)
    assert slowdowns(simulated.outcomes) is None
    found = summary(simulated, 4)
    assert (found.jain, found.worst_fairness, found.unfair) == (None, None, None)
    assert [row.slowdown for row in job_rows(simulated, 4)] == [None, None]


def test_rows_are_in_the_order_of_submission() -> None:
    simulated = Simulated([outcome("late", 7, 60), outcome("early", 3, 103)], TWO.usage)
    first, second = job_rows(simulated, 4)
    assert (first.job_id, second.job_id) == ("early", "late")
    assert (first.completion_s, first.slowdown, first.gpu_hours, first.comm_gpu_hours, first.stops) == (
        100,
        2,
        2,
        0.25,
        1,
    )


def test_the_distribution_of_completion_times_ends_with_all() -> None:
    many = Simulated([outcome(str(n), 0, n + 1.0) for n in range(1000)], TWO.usage)
    found = completion_cdf(many, points=11)
    assert (found[0], found[-1], len(found)) == ((1, 0.001), (1000, 1), 11)
    assert found == sorted(found)
    assert completion_cdf(TWO) == [(100, 0.5), (200, 1)]


def test_use_over_time_is_the_mean_of_each_piece() -> None:
    pieces = over_time(TWO, pieces=4)
    assert [(piece.begin_s, piece.end_s) for piece in pieces] == [(0, 50), (50, 100), (100, 150), (150, 200)]
    assert [piece.used_gpus for piece in pieces] == pytest.approx([4, 4, 2, 2])
    assert [piece.waiting_jobs for piece in pieces] == pytest.approx([1, 1, 0, 0])
    (whole,) = over_time(TWO, pieces=1)
    assert whole.used_gpus == pytest.approx(3)
    assert over_time(Simulated([], [(5.0, 0, 0)])) == []
