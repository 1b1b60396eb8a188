"""The dynamic programme against everything that can be tried, and against a solver of linear programmes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp

from ddlprof.cluster.elastic.programme import share_out

Factors = NDArray[np.float64]


def small_case(seed: int) -> tuple[Factors, int]:
    """Up to four jobs, any of which may not run on some numbers of GPUs; as many GPUs as are too few now and then."""
    random = np.random.default_rng(seed)
    factors = random.uniform(0.1, 6.0, (random.integers(1, 5), random.integers(1, 6)))
    factors[random.random(factors.shape) < 0.25] = -np.inf
    return factors, int(random.integers(1, 10))


def queued(factors: Factors, gpus: int) -> list[int]:
    """The jobs that get GPUs by the rule that nobody passes, counted by hand."""
    chosen, used = [], 0
    for job, row in enumerate(factors):
        fewest = next((g for g, factor in enumerate(row, 1) if factor > -np.inf), None)
        if fewest is None:
            continue
        if used + fewest > gpus:
            break
        chosen.append(job)
        used += fewest
    return chosen


def best_by_trying(factors: Factors, gpus: int) -> float:
    chosen = queued(factors, gpus)
    sums = [
        sum(float(factors[job, count - 1]) for job, count in zip(chosen, counts, strict=True))
        for counts in itertools.product(range(1, factors.shape[1] + 1), repeat=len(chosen))
        if sum(counts) <= gpus
    ]
    return max(sums, default=0.0)


def sum_of(factors: Factors, counts: list[int]) -> float:
    return sum(float(factors[job, count - 1]) for job, count in enumerate(counts) if count)


@pytest.mark.parametrize("seeds", [range(start, start + 40) for start in range(0, 200, 40)], ids=str)
def test_is_as_good_as_trying_everything(seeds: range) -> None:
    for seed in seeds:
        factors, gpus = small_case(seed)
        counts = share_out(factors, gpus)
        assert sum(counts) <= gpus
        assert [job for job, count in enumerate(counts) if count] == queued(factors, gpus)
        assert sum_of(factors, counts) == pytest.approx(best_by_trying(factors, gpus))


@pytest.mark.parametrize("seed", range(12))
def test_is_as_good_as_a_solver(seed: int) -> None:
    """Binary variables: job j has g GPUs; one for each job, no more GPUs than there are."""
    random = np.random.default_rng(seed)
    jobs, most, gpus = 12, 10, 30
    factors = np.cumsum(random.uniform(-0.2, 1.0, (jobs, most)), axis=1) + 1.0
    one_each = LinearConstraint(np.kron(np.eye(jobs), np.ones(most)), 1, 1)
    enough = LinearConstraint(np.tile(np.arange(1, most + 1), jobs)[None, :], 0, gpus)
    solved = milp(-factors.ravel(), constraints=[one_each, enough], integrality=1, bounds=(0, 1))
    assert sum_of(factors, share_out(factors, gpus)) == pytest.approx(-solved.fun)


def test_too_many_jobs_are_a_queue() -> None:
    factors = np.array([[1.0, 1.9], [1.0, 1.5], [1.0, 2.0], [1.0, 2.0]])
    assert share_out(factors, 3) == [1, 1, 1, 0]
    assert share_out(factors, 1) == [1, 0, 0, 0]


def test_a_job_that_needs_more_than_is_left_holds_up_those_behind_it() -> None:
    needs_two = [-np.inf, 1.0]
    assert share_out(np.array([[1.0, 1.1], needs_two, [1.0, 2.0]]), 2) == [2, 0, 0]
    assert share_out(np.array([needs_two, [1.0, 2.0]]), 1) == [0, 0]


def test_a_job_that_nothing_is_enough_for_holds_up_nobody() -> None:
    assert share_out(np.array([[-np.inf] * 3, [1.0, 1.5, 1.7]]), 3) == [0, 3]


def test_gpus_that_would_slow_a_job_are_left_free() -> None:
    assert share_out(np.array([[1.0, 1.5, 1.2]]), 3) == [2]


def test_nobody_and_nothing() -> None:
    assert share_out(np.zeros((0, 0)), 4) == []
    assert share_out(np.array([[1.0]]), 0) == [0]
