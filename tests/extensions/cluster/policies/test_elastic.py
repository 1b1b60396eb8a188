"""Elastic scaling and its fixed batches in the simulation, on jobs whose speed is a formula."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState, Simulated
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Placement, parse_cluster
from ddlprof.extensions.cluster.policies.elastic import Elastic, FixedMax, FixedMin, FixedRandom
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import Policy, policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import StepTime


class Formula:
    """A second for ten samples of a GPU; a second of communication between GPUs, two between machines."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        comm_s = 0.0 if placement.gpus == 1 else float(len(placement.gpus_per_machine))
        step_s = math.ceil(batch / placement.gpus) / 10 + comm_s
        return StepTime(step_s, step_s, step_s, comm_s)


def job(name: str, submit_s: float = 0.0, samples: float = 6000.0, **values: int | None) -> Job:
    return Job(name, submit_s, 1, samples, 10, **{"max_gpus": 8, "min_batch": 10, "max_batch": 320, **values})  # type: ignore[arg-type]


def simulated(jobs: list[Job], policy: Policy, cluster: str = "2x4", restart_s: float = 30.0) -> Simulated:
    return simulate(jobs, parse_cluster(cluster), policy, Formula(), restart_s=restart_s)


def ends(done: Simulated) -> dict[str, float]:
    return {outcome.job.job_id: outcome.end_s for outcome in done.outcomes}


def test_a_round_makes_room_and_between_rounds_nobody_is_stopped() -> None:
    jobs = [job("first", samples=2e5), job("second", submit_s=100.0, samples=2e5)]
    done = simulated(jobs, Elastic(round_s=600.0))
    second = next(outcome for outcome in done.outcomes if outcome.job.job_id == "second")
    assert second.first_start_s == 600.0
    assert {outcome.job.job_id: outcome.starts for outcome in done.outcomes} == {"first": 2, "second": 2}


def test_jobs_that_wait_start_on_what_is_free_before_the_next_round() -> None:
    done = simulated([job("1", max_gpus=4), job("2", submit_s=50.0, max_gpus=2)], Elastic())
    assert [outcome.waited_s for outcome in done.outcomes] == [0.0, 0.0]


def test_nobody_passes_a_job_that_does_not_fit_yet() -> None:
    """Else it would be stopped at the next round."""
    jobs = [
        Job(name, number, gpus, 6000.0, 10)
        for number, (name, gpus) in enumerate([("runs", 3), ("large", 4), ("small", 1)])
    ]
    jobs += [Job(f"late {number}", 3.0, 1, 60_000.0, 10) for number in range(6)]  # ties: those that run go on
    done = simulated(jobs, Elastic(), "1x4")
    assert [outcome.job.job_id for outcome in done.outcomes][:3] == ["runs", "large", "small"]
    assert {outcome.starts for outcome in done.outcomes} == {1}


def test_several_gpu_models_are_refused() -> None:
    with pytest.raises(UserError, match="GPUs of one model"):
        simulated([job("1")], Elastic(), "1x4:T4,1x4:V100")


def test_they_are_known_by_name() -> None:
    assert isinstance(policy_factory("fixed-random;seed=3;round_s=60")(), FixedRandom)
    assert {type(policy_factory(name)()) for name in ("elastic", "fixed-min", "fixed-max")} == {
        Elastic,
        FixedMin,
        FixedMax,
    }
    with pytest.raises(UserError, match="a round takes longer than a restart"):
        policy_factory("elastic;round_s=20")()


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(["elastic", "fixed-min", "fixed-max", "fixed-random"]))
def test_every_job_ends_whatever_it_asks_for(data: st.DataObject, name: str) -> None:
    """The simulation itself refuses GPUs that are given twice, and jobs that never run."""
    cluster: Cluster = parse_cluster("2x4")
    jobs = []
    for number in range(data.draw(st.integers(1, 8))):
        least = data.draw(st.integers(1, cluster.gpus))
        batch = data.draw(st.integers(least, 60))
        jobs.append(
            job(
                str(number), data.draw(st.floats(0, 2000)), data.draw(st.floats(1, 1e5)), min_gpus=least,
                max_gpus=data.draw(st.integers(least, cluster.gpus)), min_batch=batch,
                max_batch=data.draw(st.integers(batch, 400)),
                max_batch_per_gpu=data.draw(st.none() | st.integers(1, 40)),
            )
        )  # fmt: skip
    done = simulate(jobs, cluster, policy_factory(name)(), Formula(), restart_s=30.0)
    assert len(done.outcomes) == len(jobs)


class Flat(Formula):
    """As above, but in one machine any batch is as fast."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        comm_s = float(len(placement.gpus_per_machine) > 1)
        step_s = batch / placement.gpus / 10 + comm_s
        return StepTime(step_s, step_s, step_s, comm_s)


def test_the_batch_is_that_which_is_best_where_the_job_is_placed() -> None:
    """Over two machines, communication makes small batches slow."""
    of = job("1", min_gpus=2, max_gpus=2)
    together, apart = parse_cluster("1x2"), parse_cluster("2x1")
    given = {
        name: Elastic().decide(0.0, [JobState(of, 0.0)], [], cluster, Flat()).allocations["1"]
        for name, cluster in (("together", together), ("apart", apart))
    }
    assert (given["together"].batch, given["apart"].batch) == (10, 320)
    # On a cluster where two could be together, but where each machine has one left.
    cluster = parse_cluster("2x3")
    blocked = [JobState(job(name, max_gpus=2, min_gpus=2), 0.0) for name in "ab"]
    for index, state in enumerate(blocked):
        state.allocation = Allocation(((index, 2),), batch=10)
    policy = Elastic()
    policy.decide(0.0, [], blocked, cluster, Flat())
    allocation = policy.decide(1.0, [JobState(of, 1.0)], blocked, cluster, Flat()).allocations["1"]
    assert allocation == Allocation(((0, 1), (1, 1)), batch=320)


@pytest.mark.parametrize("seed", range(5))
def test_without_anything_to_choose_it_is_a_queue(seed: int) -> None:
    dice = random.Random(seed)
    jobs = [
        Job(str(number), dice.choice([0.0, dice.uniform(0, 3000)]), dice.randint(1, 6), dice.uniform(100, 1e5), 10)
        for number in range(30)
    ]
    assert ends(simulated(jobs, Elastic(), "1x8")) == pytest.approx(ends(simulated(jobs, Fifo(), "1x8")))
