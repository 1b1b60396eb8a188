"""Tiresias' queues."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level, parse_cluster
from ddlprof.extensions.cluster.packing import PriorityAllocator
from ddlprof.extensions.cluster.policies.las import Las, consolidated
from ddlprof.extensions.cluster.policy import Decision, policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import Speeds
from scripts.lab.as_measured import AsMeasured


def job(name: str, submit_s: float, gpus: int, duration_s: float, model: str | None = "ResNet-50") -> Job:
    return Job(name, submit_s, gpus, samples=duration_s, batch=1, step_s=1.0, model=model)


def ends(jobs: list[Job], chosen: Las, cluster: str = "1x4") -> dict[str, float]:
    simulated = simulate(jobs, parse_cluster(cluster), chosen, AsMeasured(), restart_s=0.0)
    return {outcome.job.job_id: round(outcome.end_s, 3) for outcome in simulated.outcomes}


def test_queues_end_at_ten_times_the_service_of_the_one_before() -> None:
    three = Las(limit_gpu_h=1, queues=3)
    places = [three._place(JobState(job("j", 0, 1, 1), 0.0, held_gpu_s=3600 * gpu_h), 0.0) for gpu_h in (0, 1, 9, 10)]
    assert places == [0, 1, 1, 2]
    assert (
        Las(queues=1).decide(0.0, [JobState(job("j", 0, 1, 1), 0.0)], [], parse_cluster("1x1"), AsMeasured()).wake_s
        is None
    )


@pytest.mark.parametrize(
    ("model", "gpus", "level"),
    [
        ("ResNet-50", 4, Level.NETWORK),
        ("resnet_152 (batch size 64)", 4, Level.NETWORK),
        ("wide_resnet50_2", 4, Level.NETWORK),
        ("Inception3", 4, Level.NETWORK),
        ("BERT", 4, Level.MACHINE),
        ("bert-base-uncased", 4, Level.MACHINE),
        ("VGG", 4, Level.MACHINE),
        ("VGG", 8, Level.RACK),
        ("VGG", 12, Level.NETWORK),
        (None, 4, Level.MACHINE),
    ],
)
def test_skewed_models_are_consolidated(model: str | None, gpus: int, level: Level) -> None:
    assert consolidated(job("j", 0, gpus, 1, model), parse_cluster("2x2x4")) == level


def waits_of(promote: float) -> dict[str, float]:
    """The long job falls after 900 s, and one short job after another comes in the first queue."""
    jobs = [job("long", 0, 4, 2000), *(job(f"short{number}", 100 + 600 * number, 4, 600) for number in range(10))]
    found = ends(jobs, Las(limit_gpu_h=1, promote=promote))
    return {"long": found["long"], "last": max(end for name, end in found.items() if name != "long")}


def test_a_starved_job_is_promoted() -> None:
    """It ran 900 s and waits for twice as long, until 2700 s; then it has the same service again in the first queue,
    as it started first, and waits for twice that once more."""
    assert waits_of(promote=2) == {"long": 2700 + 900 + 1800 + 200, "last": 8000}
    assert waits_of(promote=math.inf) == {"long": 8000, "last": 6900}


def test_a_promotion_is_at_its_time() -> None:
    """Nothing else happens then."""
    held = JobState(job("old", 0, 4, 1e6), changed_s=100.0, held_gpu_s=7200.0, first_start_s=0.0)
    new = JobState(job("new", 1, 4, 1e6), changed_s=100.0, allocation=Allocation(((0, 4),)), first_start_s=100.0)
    las = Las(limit_gpu_h=1, promote=0.25)
    first = las.decide(100.0, [held], [new], parse_cluster("1x4"), AsMeasured())
    assert (set(first.allocations), first.wake_s) == ({"new"}, 100.0 + 0.25 * 1800)
    later = las.decide(550.0, [held], [new], parse_cluster("1x4"), AsMeasured())
    assert set(later.allocations) == {"old"}
    assert later.wake_s == 550.0 + 900


@pytest.mark.parametrize(
    "text",
    [
        "las;queues=0",
        "las;queues=nan",
        "las;queues=1e9",
        "las;limit_gpu_h=0",
        "las;limit_gpu_h=nan",
        "las;promote=0",
        "las;promote=nan",
    ],
)
def test_bad_parameters(text: str) -> None:
    with pytest.raises(UserError, match="must be"):
        policy_factory(text)()


class EveryJobEachTime(Las):
    """The rules without any short cut: all jobs are sorted and placed at every decision."""

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        promotion_s = self._promoted(queue, now_s)
        jobs = sorted([*queue, *running], key=lambda state: self._key(state, now_s))
        allocator = PriorityAllocator(cluster, running, jobs, now_s)
        allotted: dict[str, Allocation] = {}
        for state in jobs:
            wanted = allocator.keep(state) or allocator.allocate(state, consolidated(state.job, cluster))
            if wanted is not None:
                allotted[state.job.job_id] = wanted
        falls = [
            now_s + (limit - self._attained(state, now_s)) / allotted[state.job.job_id].gpus
            for state in jobs
            if state.job.job_id in allotted
            for limit in self._limits[self._place(state, now_s) :][:1]
        ]
        wakes = [each for each in (*falls, promotion_s) if each is not None]
        return Decision(allotted, min(wakes, default=None))

    def _key(self, state: JobState, now_s: float) -> tuple[int, float, float, str]:
        first_start_s = math.inf if state.first_start_s is None else state.first_start_s
        return self._place(state, now_s), first_start_s, state.job.submit_s, state.job.job_id


@given(
    seed=st.integers(0, 10**6), shape=st.sampled_from(["1x4", "2x2x4", "2x4:V100,2x4:T4"]), gap_s=st.integers(20, 600)
)
@settings(max_examples=25, deadline=None)
def test_short_cuts_change_nothing(seed: int, shape: str, gap_s: int) -> None:
    dice, cluster = random.Random(seed), parse_cluster(shape)
    jobs = [
        Job(
            str(number), number * dice.uniform(0, 2) * gap_s, dice.choice([1, 1, 2, 3, 4]), dice.uniform(50, 3000), 1,
            1.0, model=dice.choice(["resnet", "bert"]),
        )
        for number in range(30)
    ]  # fmt: skip
    options = {"limit_gpu_h": 0.3, "queues": 3, "promote": dice.choice([2.0, math.inf])}
    short, full = (
        simulate(jobs, cluster, kind(**options), AsMeasured(), restart_s=30.0) for kind in (Las, EveryJobEachTime)
    )
    assert short == full
