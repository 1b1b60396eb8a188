"""The wall times of two jobs, part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlprof.analysis.compare import Difference, RunTimes
from ddlprof.analysis.compare_job import JobTimes, compare_jobs, job_times, same_work
from ddlprof.analysis.job_time import JOB_PARTS, JobTime

STEP_NS = 10e6


def times(noise: float = 0.01, queued_share: float | None = None) -> RunTimes:
    steps = np.full(200, STEP_NS)
    return RunTimes({"step": STEP_NS}, {"step": steps}, noise, queued_share=queued_share)


def job(steps: int = 200, **seconds: float) -> JobTime:
    """A job of 3 s of start-up, its steps, and the named parts."""
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    parts |= {"start_up": 3.0, "steps": steps * STEP_NS / 1e9, **seconds}
    return JobTime(sum(each or 0.0 for each in parts.values()), parts, steps=steps)


def known(found: JobTime, noise: float = 0.01, queued_share: float | None = None) -> JobTimes:
    result = job_times(found, times(noise, queued_share))
    assert result is not None
    return result


def words(a: JobTime, b: JobTime) -> dict[str, str]:
    return {each.name: each.word for each in compare_jobs([known(a)], [known(b)])}


def test_first_batches_that_are_gone_make_the_job_faster_and_no_step() -> None:
    found = words(job(epoch_start=14.5), job())
    assert found == {"job": "faster", "start_up": "none", "steps": "none", "epoch_start": "faster"}
    assert words(job(), job(epoch_start=14.5))["job"] == "slower"


def test_equal_jobs_are_not_told_apart() -> None:
    assert set(words(job(evaluation=4.0), job(evaluation=4.4)).values()) == {"none"}
    assert set(words(job(start_up=2.0), job(start_up=3.0)).values()) == {"none"}  # the caches of the machine


@pytest.mark.parametrize(
    ("each_ns", "word"),
    [([1e9, 1.01e9, 0.99e9, 1e9, 1e9], "faster"), ([0.5e9, 1.5e9, 0.6e9, 1.4e9, 1e9], "none"), ([1e9, 1e9], "none")],
)
def test_evaluations_that_take_as_long_each_time_are_told_apart_sooner(each_ns: list[float], word: str) -> None:
    one, other = (
        job_times(job(evaluation=seconds), times(), evaluations=[round(ns) for ns in each_ns]) for seconds in (50, 40)
    )
    assert {each.name: each.word for each in compare_jobs([one], [other])}["evaluation"] == word


def test_a_busy_machine_says_less() -> None:
    a, b = job(evaluation=8.0), job(evaluation=4.0)
    quiet, busy = (
        {each.name: each.word for each in compare_jobs([known(a, queued_share=of)], [known(b, queued_share=of)])}
        for of in (0.0, 0.7)
    )
    assert (quiet["evaluation"], busy["evaluation"]) == ("faster", "none")


def test_a_job_of_more_steps_is_not_slower_for_that() -> None:
    """What is there once does not grow with the steps: 3 s of start-up for 200 steps or for 2,000."""
    a, b = known(job(checkpoint=2.0)), known(job(steps=2000, checkpoint=20.0))
    assert not same_work([a], [b])
    found = {each.name: each for each in compare_jobs([a], [b])}
    assert {each.word for each in found.values()} == {"none"}
    assert found["job"].b_ns == found["job"].a_ns == pytest.approx(7e9)
    assert same_work([a], [a])


def test_several_runs_show_how_jobs_differ() -> None:
    def side(more: float) -> list[JobTimes]:
        return [known(job(evaluation=2.0 + more + off)) for off in (-0.1, 0.0, 0.1, 0.05)]

    def of(found: list[Difference], name: str) -> str:
        return next(each.word for each in found if each.name == name)

    found = compare_jobs(side(0.0), side(1.5))
    assert (of(found, "job"), of(found, "evaluation")) == ("slower", "slower")
    assert of(compare_jobs(side(0.0), side(0.0)), "job") == "none"


@pytest.mark.parametrize("unknown", [None, {"until": "stopped"}, {"timed": False}, {"steps": 4}])
def test_a_job_that_was_not_measured_as_a_whole_is_not_compared(unknown: dict[str, object] | None) -> None:
    found = None if unknown is None else replace(job(), **unknown)  # type: ignore[arg-type]
    assert job_times(found, times()) is None
    assert compare_jobs([known(job())], [None]) == []
