"""What jobs teach, and that only what helps is used."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ddlprof.extensions.learn.judge import LEAST_JOBS, learn
from ddlprof.recommender import Coefficients, Measurement, PredictionError, Predictor, Target, Workload
from ddlprof.recommender.learned import Learned
from tests.extensions.learn.teams import GPU, job, team
from tests.short import first_short

NEXT = job(9, factor=1.6)
UNMEASURED = replace(NEXT, measurements=())
HERE = Target(GPU, (1,), 16)


def taught(workloads: list[Workload]) -> Learned:
    found = learn(workloads).learned
    assert found is not None
    return found


def error(workload: Workload, learned: Learned | None) -> float:
    measured = workload.measurements[0]
    target = Target(GPU, measured.placement, measured.batch_per_gpu)
    found = Predictor(replace(workload, measurements=()), learned=learned).predict(target)
    return abs(found.step_s / measured.step_s - 1)


@pytest.fixture(scope="module")
def slow() -> Learned:
    return taught(team(6, factor=1.6))


def test_the_next_job_is_predicted_as_fast_as_the_others_were(slow: Learned) -> None:
    assert error(NEXT, None) > 0.3
    assert error(NEXT, slow) < 0.08


def test_the_interval_is_that_of_jobs_left_out(slow: Learned) -> None:
    def width(learned: Learned | None) -> float:
        found = Predictor(UNMEASURED, learned=learned).predict(HERE)
        return found.high_s / found.low_s

    scattered = taught(team(8, factor=2.5, scatter=0.3))
    assert width(slow) < width(scattered) < width(None)


def test_what_was_measured_elsewhere_is_carried_to_the_corrected_gpu(slow: Learned) -> None:
    elsewhere = Measurement("p4d.24xlarge", placement=(1,), batch_per_gpu=16, step_s=0.04, exposed_comm_s=0.0)
    known = replace(UNMEASURED, measurements=[elsewhere])
    shipped, found = (Predictor(known, learned=learned).predict(HERE).step_s for learned in (None, slow))
    assert 1.1 < found / shipped < 1.7


def test_the_basis_says_what_was_learned(slow: Learned) -> None:
    basis = Predictor(UNMEASURED, learned=slow).predict(HERE).basis
    assert any("learned from 6 jobs of yours on T4" in sentence for sentence in basis)


@pytest.mark.slow
def test_links_are_learned_from_jobs_on_several_gpus() -> None:
    found = taught(team(6, gpus=4))
    assert [row.subject for row in found.links] == ["T4, pcie"]
    next_job = job(9, gpus=4)
    assert error(next_job, found) < error(next_job, None)
    assert any("links: learned from 6 jobs" in s for s in Predictor(UNMEASURED, learned=found).predict(
        Target(GPU, (4,), 16)).basis)  # fmt: skip


@pytest.mark.slow
def test_measured_placements_outweigh_what_was_learned() -> None:
    found = taught(team(6, gpus=4))
    own = job(9, gpus=4)
    compute_s = own.measurements[1].compute_s or 0.0
    alone = replace(own.measurements[1], placement=(1,), step_s=compute_s, exposed_comm_s=0.0)
    measured = replace(own, measurements=[alone, *own.measurements])
    step_s = Predictor(measured, learned=found).predict(Target(GPU, (4,), 32)).step_s
    assert step_s == pytest.approx(own.measurements[1].step_s, rel=0.05)


def test_nothing_is_learned_from_what_is_as_shipped_with_noise() -> None:
    rng = random.Random(3)
    noisy = [job(number, factor=rng.choice([0.6, 1.7]), scatter=0.02) for number in range(6)]
    found = learn(noisy)
    if found.learned is None:
        assert found.why_not
    assert all(row.after <= row.before for row in found.errors if row.used)


@pytest.mark.parametrize("seed", first_short(range(4)))
def test_never_worse_than_shipped_on_jobs_left_out(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [job(n, factor=rng.lognormvariate(0, 0.4), gpus=rng.choice([1, 4])) for n in range(rng.randint(3, 7))]
    found = learn(jobs)
    assert (found.learned is None) == bool(found.why_not)
    if found.learned:
        assert found.learned.errors == found.errors
        used = {(row.what, row.of) for row in found.errors if row.used}
        corrections = [("computation", row.subject) for row in found.learned.compute]
        corrections += [("communication", row.subject) for row in found.learned.links]
        assert corrections
        assert set(corrections) <= used
        assert all(row.after <= row.before for row in found.errors if row.used or row.what == "step")


def test_the_order_of_jobs_does_not_matter() -> None:
    jobs = team(6, factor=1.4, scatter=0.1)
    shuffled = random.Random(1).sample(jobs, len(jobs))
    assert learn(jobs) == learn(shuffled)


def test_few_jobs_teach_nothing() -> None:
    found = learn(team(LEAST_JOBS - 1))
    assert (found.learned, found.errors) == (None, ())
    assert "takes 3 jobs; there are 2" in found.why_not


def test_jobs_that_tell_nothing_are_named() -> None:
    unknown = Workload("no counts", measurements=[Measurement(GPU, placement=(1,), batch_per_gpu=1, step_s=1.0)])
    found = learn([unknown, *team(4, factor=1.5)])
    assert found.unused == ((0, "one GPU, and neither operators nor FLOPs of the step are known"),)
    assert found.learned is not None
    assert len(found.learned.sources) == 4


def test_no_name_is_in_the_file(slow: Learned) -> None:
    assert [source.name for source in slow.sources] == [f"job {n}" for n in range(1, 7)]


def test_what_is_not_corrected_stays_as_shipped(slow: Learned) -> None:
    shipped = Coefficients.shipped()
    corrected = slow.applied_to(shipped)
    assert corrected.compute.pairs == shipped.compute.pairs
    assert corrected.communication.priors == shipped.communication.priors


def test_a_job_of_which_nothing_is_known_cannot_be_predicted(slow: Learned) -> None:
    with pytest.raises(PredictionError, match="no step measured"):
        Predictor(Workload("unknown"), learned=slow)
