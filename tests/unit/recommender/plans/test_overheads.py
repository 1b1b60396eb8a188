"""What a job takes besides its steps, on other machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.base.errors import DdlprofError
from ddlprof.recommender.estimate import Estimate, Range, StepTimes
from ddlprof.recommender.plans.candidates import Sizing
from ddlprof.recommender.plans.overheads import NO_OVERHEADS, overheads_of
from ddlprof.recommender.workload import JobFacts, Recurring
from tests.unit.recommender.made_up import job
from tests.unit.recommender.plans.test_ranking import HOUR, ask, of

ESTIMATE = Estimate(0.2, 0.1, 0.4, StepTimes(compute_s=0.16, data_s=0.04), False, ())
SIZING = Sizing(1, 4, 8, 2)
FACTS = JobFacts(
    start_up_s=30.0,
    evaluation=Recurring(50.0, 1000),
    checkpoint=Recurring(4.0, 500),
    epoch_start=Recurring(2.0, None),
    compute_s_per_sample=0.04,
    compute_share=0.5,
)


def parts(facts: JobFacts | None, samples: float = 10_000) -> dict[str, Range]:
    return overheads_of(facts, ESTIMATE, SIZING, samples).parts


def test_nothing_is_counted_where_nothing_is_known() -> None:
    assert overheads_of(None, ESTIMATE, SIZING, 1e6) == NO_OVERHEADS
    assert NO_OVERHEADS.total == Range(0, 0, 0)
    assert parts(JobFacts()) == {}


def test_what_happens_once_is_not_scaled_and_what_recurs_is() -> None:
    short, long = parts(FACTS), parts(FACTS, 100_000)
    assert short["start_up"] == long["start_up"] == Range(30, 15, 60)
    assert short["epoch_start"] == long["epoch_start"] == Range(2, 1, 4)
    assert short["checkpoint"] == Range(80, 40, 160)
    assert long["checkpoint"] == Range(800, 400, 1600)


def test_only_the_computing_of_an_evaluation_changes_with_the_gpu() -> None:
    # 500 s where a sample takes 40 ms, half of it computing; here it takes 160 ms / 16 = 10 ms.
    evaluation = parts(FACTS)["evaluation"]
    assert evaluation.mean_s == pytest.approx(500 * (0.5 + 0.5 / 4))
    assert evaluation.low_s == pytest.approx(500 * (0.5 / 2 + 0.5 / 4 / 2))
    assert evaluation.high_s == pytest.approx(500 * (0.5 * 2 + 0.5 / 4 * 2))
    assert parts(replace(FACTS, compute_s_per_sample=None))["evaluation"] == Range(500, 250, 1000)
    assert parts(replace(FACTS, compute_share=0.0))["evaluation"] == Range(500, 250, 1000)


def test_the_parts_and_what_they_rest_on_add_up() -> None:
    found = overheads_of(FACTS, ESTIMATE, SIZING, 10_000)
    assert found.total.mean_s == pytest.approx(30 + 2 + 80 + 312.5)
    assert found.total.low_s < found.total.mean_s < found.total.high_s
    assert found.basis == (
        "first batches of epochs: 2 s once, as the run does not tell how often",
        "evaluations: 50 s each in the run, one in 1,000 samples",
        "checkpoints: 4 s each in the run, one in 500 samples",
    )
    unseen = overheads_of(JobFacts(start_up_s=3.0), ESTIMATE, SIZING, 10_000).basis
    assert unseen[1] == "evaluations: not seen in the run, not counted"


def test_a_plan_counts_them_in_time_and_cost() -> None:
    plain = of(ask(), "big.1")
    facts = JobFacts(start_up_s=600.0, checkpoint=Recurring(10.0, 1000))
    counted = of(ask(replace(job(), job=facts)), "big.1")
    assert plain.time_s == pytest.approx(2 * HOUR)
    assert counted.time_s == pytest.approx(2 * HOUR + 600 + 3600)  # 360,000 samples
    assert counted.time_low_s == pytest.approx(1.6 * HOUR + 300 + 1800)
    assert counted.time_high_s == pytest.approx(2.4 * HOUR + 1200 + 7200)
    assert counted.start_up_s == 600
    assert counted.checkpoint_s == pytest.approx(3600)
    assert counted.evaluation_s is plain.start_up_s is None
    assert counted.cost_usd is not None
    assert counted.cost_usd == pytest.approx(8.0 * (counted.time_s or 0) / (2 * HOUR), rel=1e-3)
    assert counted.step_s == plain.step_s
    rejected = next(plan for plan in ask(replace(job(), job=facts)) if plan.times is None)
    assert rejected.start_up_s is None


def test_facts_that_cannot_be_are_refused() -> None:
    with pytest.raises(DdlprofError, match="compute_share"):
        JobFacts(compute_share=1.5)
    with pytest.raises(DdlprofError, match="every_samples"):
        JobFacts(evaluation=Recurring(1.0, 0.0))
