"""The best batch for each number of GPUs, and what large batches cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.cluster.elastic.choices import Choices, all_batches
from ddlprof.cluster.elastic.efficiency import Effective, efficiency
from ddlprof.cluster.jobs import Job
from ddlprof.cluster.machines import Spread, parse_cluster
from ddlprof.cluster.speeds import StepTime


class Linear:
    """A second for each ten samples of a GPU, half a second for every GPU but the first."""

    def step(self, job: Job, spread: Spread, batch: int) -> StepTime:
        step_s = 0.1 * math.ceil(batch / spread.gpus) + 0.5 * (spread.gpus - 1)
        return StepTime(step_s, step_s, step_s, 0.5 * (spread.gpus - 1))


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


def test_numbers_of_gpus_that_a_job_cannot_have_are_impossible() -> None:
    factors = Choices(parse_cluster("1x4"), Linear()).factors([job(min_gpus=2, max_gpus=3), job(job_id="2")])
    assert factors[0] == pytest.approx([-math.inf, 2, 2 * 1.3 / 1.6])
    assert list(factors[1]) == [1, -math.inf, -math.inf]


def test_efficiency_is_that_of_pollux() -> None:
    """Its equation 6 from the variance v and the square s of the gradient at the base batch, scale k:
    (v + s) / (v / k + s) / k."""
    v, s, base, scale = 3.0, 0.5, 32, 8
    assert efficiency(base * scale, base, v / s * base) == pytest.approx((v + s) / (v / scale + s) / scale)
    assert efficiency(base, base, 1000.0) == 1.0


def test_noise_makes_an_end_of_large_batches() -> None:
    of = job(min_batch=16, max_batch=4096, max_gpus=4)
    free = Choices(parse_cluster("1x4"), Linear()).of(of)[3]
    charged = Choices(parse_cluster("1x4"), Effective(Linear(), {"1": 100.0})).of(of)[3]
    assert free is not None
    assert charged is not None
    assert charged.batch < free.batch == 4096
    step = Effective(Linear(), {"1": 100.0}).step(of, Spread((4,)), 64)
    assert step.comm_s / step.step_s == pytest.approx(1.5 / 3.1)
    assert Effective(Linear(), {}).step(of, Spread((4,)), 64) == Linear().step(of, Spread((4,)), 64)
