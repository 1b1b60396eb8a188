"""The best batch for each number of GPUs, and what large batches cost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, milp

from ddlprof.extensions.cluster.elastic.scaling import (
    Choices,
    GoodputSpeeds,
    all_batches,
    share_out,
    statistical_efficiency,
)
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Placement, parse_cluster
from ddlprof.extensions.cluster.speeds import StepTime


class Linear:
    """A second for each ten samples of a GPU, half a second for every GPU but the first."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        step_s = 0.1 * math.ceil(batch / placement.gpus) + 0.5 * (placement.gpus - 1)
        return StepTime(step_s, step_s, step_s, 0.5 * (placement.gpus - 1))


def job(**values: object) -> Job:
    return Job(**{"job_id": "1", "submit_s": 0.0, "gpus": 1, "samples": 1e4, "batch": 16, **values})  # type: ignore[arg-type]


@given(
    least=st.integers(1, 500), more=st.integers(0, 5000), gpus=st.integers(1, 64),
    memory=st.none() | st.integers(1, 300),
)  # fmt: skip
def test_batches_are_within_the_bounds_and_divide_by_the_gpus(
    least: int, more: int, gpus: int, memory: int | None
) -> None:
    of = job(min_batch=least, max_batch=least + more, max_batch_per_gpu=memory)
    found = all_batches(of, gpus)
    possible = range(math.ceil(least / gpus) * gpus, least + more + 1, gpus)
    fitting = [batch for batch in possible if memory is None or batch <= memory * gpus] or possible
    if fitting:
        assert set(found) <= set(fitting)
        assert (min(found), max(found)) == (fitting[0], fitting[-1])
    else:
        assert found == [least + more] * (least + more >= gpus)


def test_without_bounds_the_batch_is_as_asked_for() -> None:
    assert all_batches(job(), 1) == [16]
    assert all_batches(job(), 4) == [16]
    assert all_batches(job(), 32) == [16]  # what a sample is differs between traces
    assert all_batches(job(min_batch=16, max_batch=16), 3) == [16]  # one GPU has 6 of them


def test_larger_batches_pay_for_communication_and_factors_begin_at_one() -> None:
    choices = Choices(parse_cluster("1x4"), Linear())
    of = job(min_batch=16, max_batch=64, max_gpus=4)
    found = choices.of(of)
    assert [choice.batch for choice in found if choice] == [16, 64, 63, 64]
    assert choices.factors([of])[0] == pytest.approx([1, 64 / 3.7 / 10, 63 / 3.1 / 10, 64 / 3.1 / 10])


def test_efficiency_is_that_of_pollux() -> None:
    """Its equation 6 from the variance v and the square s of the gradient at the base batch, scale k:
    (v + s) / (v / k + s) / k."""
    v, s, base, scale = 3.0, 0.5, 32, 8
    assert statistical_efficiency(base * scale, base, v / s * base) == pytest.approx((v + s) / (v / scale + s) / scale)
    assert statistical_efficiency(base, base, 1000.0) == 1.0


def test_noise_makes_an_end_of_large_batches() -> None:
    of = job(min_batch=16, max_batch=4096, max_gpus=4)
    free = Choices(parse_cluster("1x4"), Linear()).of(of)[3]
    charged = Choices(parse_cluster("1x4"), GoodputSpeeds(Linear(), {"1": 100.0})).of(of)[3]
    assert free is not None
    assert charged is not None
    assert charged.batch < free.batch == 4096
    step = GoodputSpeeds(Linear(), {"1": 100.0}).step(of, Placement((4,)), 64)
    assert step.comm_s / step.step_s == pytest.approx(1.5 / 3.1)
    assert GoodputSpeeds(Linear(), {}).step(of, Placement((4,)), 64) == Linear().step(of, Placement((4,)), 64)


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


def by_the_plain_programme(factors: Factors, gpus: int) -> list[int]:
    """Every number of GPUs of every job on every rest: of equal sums, the fewest GPUs of the last job, and so on."""
    chosen = queued(factors, gpus)
    most = factors.shape[1]
    best, taken = np.zeros(gpus + 1), []
    for job in chosen:
        sums = np.full((gpus + 1, most), -np.inf)
        for count in range(1, min(most, gpus) + 1):
            sums[count:, count - 1] = best[: gpus + 1 - count] + factors[job, count - 1]
        taken.append(sums.argmax(axis=1) + 1)
        best = sums.max(axis=1)
    counts, left = [0] * len(factors), gpus
    for job, of_job in zip(reversed(chosen), reversed(taken), strict=True):
        counts[job] = int(of_job[left])
        left -= counts[job]
    return counts


@given(
    seed=st.integers(0, 10**6),
    jobs=st.integers(1, 12),
    most=st.integers(1, 24),
    gpus=st.integers(1, 60),
    kind=st.sampled_from(["rising", "ragged", "few values", "alike", "even"]),
    missing=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=300, deadline=None)
def test_what_is_left_out_changes_no_division(
    seed: int, jobs: int, most: int, gpus: int, kind: str, missing: float
) -> None:
    random = np.random.default_rng(seed)
    factors = {
        "rising": lambda: np.cumsum(random.uniform(0, 1, (jobs, most)), axis=1) + 1,
        "ragged": lambda: random.uniform(0.1, 6.0, (jobs, most)),
        "few values": lambda: random.integers(1, 5, (jobs, most)).astype(float),
        "alike": lambda: np.repeat(np.cumsum(random.uniform(-0.2, 1, (1, most)), axis=1), jobs, axis=0) + 1,
        "even": lambda: np.tile(np.arange(1.0, most + 1), (jobs, 1)),
    }[kind]()
    factors[random.random(factors.shape) < missing] = -np.inf
    assert share_out(factors, gpus) == by_the_plain_programme(factors, gpus)


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


def test_nobody_and_nothing() -> None:
    assert share_out(np.zeros((0, 0)), 4) == []
    assert share_out(np.array([[1.0]]), 0) == [0]
