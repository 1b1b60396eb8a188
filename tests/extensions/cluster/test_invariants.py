"""What holds for every policy there is, on random traces: it is enough to be in the registry to be tried here."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState, Simulated, exactly
from ddlprof.extensions.cluster.machines import Allocation, Cluster, parse_cluster
from ddlprof.extensions.cluster.packing import FreeGpus, kept
from ddlprof.extensions.cluster.policy import Decision, policy_factory, policy_names
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import Speeds
from tests.extensions.cluster.ledger import Ledger, PowersOfTwo, check

CLUSTERS = ("1x4", "3x2", "2x2x4", "2x3x1", "2x4:V100,2x4:T4")
TRIED = settings(max_examples=7, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def jobs_for(draw: st.DrawFn, cluster: Cluster) -> list[Job]:
    """Up to eight jobs with distinct submissions, some elastic, at times as regular as ties need."""
    submits = draw(st.lists(st.integers(0, 400), min_size=1, max_size=8, unique=True))
    jobs = []
    for place, submit in enumerate(submits):
        gpus = draw(st.integers(1, cluster.most_of_one_model))
        batch = draw(st.sampled_from([8, 64]))
        duration = draw(st.sampled_from([1, 7, 60, 200, 1000]))
        job = Job(
            f"j{place}", submit * 8.0, gpus, float(duration * batch), batch, 1.0, draw(st.sampled_from(["a", "b"]))
        )
        if draw(st.booleans()):
            most = draw(st.integers(gpus, cluster.most_of_one_model))
            job = replace(job, max_gpus=most, min_batch=batch // 2, max_batch=batch * 4, max_batch_per_gpu=batch)
        jobs.append(job)
    return jobs


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Job], Cluster, float, bool]:
    cluster = parse_cluster(draw(st.sampled_from(CLUSTERS)))
    restart = draw(st.sampled_from([0.0, 32.0]))
    return draw(jobs_for(cluster)), cluster, restart, draw(st.booleans())


class Whimsical:
    """Starts, moves, stops and resizes jobs at random, within what is allowed; later it lets all run to their end."""

    def __init__(self, seed: int, lease_s: float, round_s: float | None) -> None:
        self.lease_s, self.round_s = lease_s, round_s
        self._random = random.Random(seed)
        self._questions = 0

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        self._questions += 1
        whims = self._questions < 200
        free = FreeGpus(cluster, kept(running, now_s))
        given: dict[str, Allocation] = {}
        states = [*running, *queue]
        for state in self._random.sample(states, len(states)) if whims else states:
            held, job = state.allocation, state.job
            if (held is not None and not state.may_move(now_s)) or (whims and self._random.random() < 0.3):
                continue
            wanted: Allocation | None
            stays = not whims or self._random.random() < 0.6
            if stays and held is not None and free.fits(held):
                wanted = held
            else:
                wanted = free.place(self._random.randint(job.fewest_gpus, job.most_gpus))
                if wanted is not None and job.max_batch_per_gpu is not None and self._random.random() < 0.5:
                    wanted = replace(wanted, batch=min(job.max_batch or 1, wanted.gpus * job.max_batch_per_gpu))
            if wanted is not None:
                free.take(wanted)
                given[job.job_id] = wanted
        wake_s = now_s + self._random.choice([3.0, 16.0, 50.0])
        return Decision(given, wake_s if whims else None)


@given(
    case=cases(),
    seed=st.integers(0, 999),
    lease_s=st.sampled_from([0.0, 16.0, 100.0, math.inf]),
    round_s=st.sampled_from([None, 64.0]),
)
@settings(TRIED, max_examples=25)
def test_the_simulation_keeps_its_books_whatever_a_policy_does(
    case: tuple[list[Job], Cluster, float, bool], seed: int, lease_s: float, round_s: float | None
) -> None:
    jobs, cluster, restart_s, _ = case
    ledger = Ledger(Whimsical(seed, lease_s, round_s))
    check(ledger, simulate(jobs, cluster, ledger, PowersOfTwo(), restart_s=restart_s), jobs, cluster, restart_s)


def run(name: str, jobs: list[Job], cluster: Cluster, restart_s: float, known: bool = True) -> tuple[Simulated, Ledger]:
    ledger = Ledger(policy_factory(name)())
    expect = exactly if known else lambda job: None
    try:
        return simulate(jobs, cluster, ledger, PowersOfTwo(), restart_s=restart_s, expect=expect), ledger
    except UserError as error:
        assume("GPUs of one model" not in str(error))  # some policies refuse clusters of several, and say so
        raise


def ends(simulated: Simulated, shift_s: float = 0.0) -> dict[str, tuple[float, float]]:
    return {each.job.job_id: (each.first_start_s - shift_s, each.end_s - shift_s) for each in simulated.outcomes}


@pytest.mark.parametrize("name", policy_names())
@given(case=cases())
@TRIED
def test_capacity_gangs_leases_and_work(name: str, case: tuple[list[Job], Cluster, float, bool]) -> None:
    jobs, cluster, restart_s, known = case
    simulated, ledger = run(name, jobs, cluster, restart_s, known)
    check(ledger, simulated, jobs, cluster, restart_s)


@pytest.mark.parametrize("name", policy_names())
@given(case=cases(), data=st.data())
@TRIED
def test_order_of_the_input_and_begin_of_the_clock_do_not_matter(
    name: str, case: tuple[list[Job], Cluster, float, bool], data: st.DataObject
) -> None:
    jobs, cluster, restart_s, _ = case
    expected = ends(run(name, jobs, cluster, restart_s)[0])
    shuffled = data.draw(st.permutations(jobs))
    assert ends(run(name, shuffled, cluster, restart_s)[0]) == expected
    shift_s = 2.0 ** data.draw(st.integers(0, 20))
    shifted = [replace(job, submit_s=job.submit_s + shift_s) for job in jobs]
    assert ends(run(name, shifted, cluster, restart_s)[0], shift_s) == expected
