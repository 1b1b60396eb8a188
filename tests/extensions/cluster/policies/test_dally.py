"""Dally's rules on clusters small enough to follow by hand."""

from __future__ import annotations

import math

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState, Simulated
from ddlprof.extensions.cluster.machines import Allocation, Level, parse_cluster
from ddlprof.extensions.cluster.penalties import ModelPenalties, PenalisedSpeeds, Penalties
from ddlprof.extensions.cluster.policies.dally import (
    Consolidate,
    Dally,
    NoWait,
    allowed,
    tuned_network_delay,
    tuned_rack_delay,
)
from ddlprof.extensions.cluster.policy import Decision, policy_factory
from ddlprof.extensions.cluster.simulation.core import simulate
from scripts.lab.as_measured import AsMeasured

LEASE_S = 100.0
RACKS = parse_cluster("2x2x4")
"""Two racks of two machines with four GPUs."""


def waiting(name: str, gpus: int, since_s: float = 0.0) -> JobState:
    return JobState(Job(name, since_s, gpus, samples=1000.0, batch=1, step_s=1.0), since_s, assigned_s=since_s)


def holding(
    name: str, *parts: tuple[int, int], done: float = 0.0, held_gpu_s: float = 0.0, until_s: float = math.inf
) -> JobState:
    """A job that runs, and made so much progress with so many GPU-seconds."""
    allocation = Allocation(parts)
    job = Job(name, 0.0, allocation.gpus, samples=1e6, batch=1, step_s=1.0)
    return JobState(
        job, 0.0, done_samples=done, held_gpu_s=held_gpu_s, allocation=allocation, lease_end_s=until_s, starts=1
    )


def decide(chosen: Dally, now_s: float, queue: list[JobState], running: list[JobState]) -> Decision:
    for state in running:
        state.changed_s = now_s
    return chosen.decide(now_s, queue, running, RACKS, AsMeasured())


def fixed() -> Dally:
    return Dally(rack_delay=6, network_delay=12, lease_s=LEASE_S)


def test_rule_1_a_machine_is_taken_at_once() -> None:
    decision = decide(fixed(), 0.0, [waiting("a", 4)], [holding("x", (0, 1))])
    assert decision.allocations == {"a": Allocation(((1, 4),))}


@pytest.mark.parametrize(("now_s", "gets"), [(599.0, None), (600.0, ((0, 2), (1, 2)))])
def test_rule_2_a_rack_after_its_delay(now_s: float, gets: tuple[tuple[int, int], ...] | None) -> None:
    running = [holding("x", (0, 2)), holding("y", (1, 2)), holding("z", (2, 4)), holding("v", (3, 4))]
    decision = decide(fixed(), now_s, [waiting("a", 4)], running)
    assert decision.allocations.get("a") == (None if gets is None else Allocation(gets))
    if gets is None:
        assert decision.wake_s == 600.0


def test_rule_2_a_rack_at_once_for_a_job_larger_than_a_machine() -> None:
    decision = decide(fixed(), 0.0, [waiting("a", 8)], [holding("x", (2, 1))])
    assert decision.allocations == {"a": Allocation(((0, 4), (1, 4)))}


@pytest.mark.parametrize(("now_s", "gets"), [(1199.0, None), (1200.0, ((0, 2), (2, 2)))])
def test_rule_3_any_gpus_after_the_second_delay(now_s: float, gets: tuple[tuple[int, int], ...] | None) -> None:
    running = [holding("x", (0, 2)), holding("y", (1, 4)), holding("z", (2, 2)), holding("v", (3, 4))]
    decision = decide(fixed(), now_s, [waiting("a", 4)], running)
    assert decision.allocations.get("a") == (None if gets is None else Allocation(gets))
    if gets is None:
        assert decision.wake_s == 1200.0


def test_rule_3_any_gpus_at_once_for_a_job_larger_than_a_rack() -> None:
    decision = decide(fixed(), 0.0, [waiting("a", 12)], [])
    assert decision.allocations["a"].gpus == 12


def test_rule_4_all_or_none() -> None:
    running = [holding("x", (0, 4)), holding("y", (1, 4)), holding("z", (2, 4)), holding("v", (3, 1))]
    decision = decide(fixed(), 1e6, [waiting("a", 4)], running)
    assert decision == Decision({}, None)


def test_a_wait_counts_from_the_last_gpus() -> None:
    """A job that was spread and whose lease is over has to earn it again, even if nobody wants its GPUs."""
    state = holding("a", (0, 2), (1, 2), until_s=100.0)
    others = [holding("x", (0, 2)), holding("y", (1, 2)), holding("z", (2, 2)), holding("v", (3, 2))]
    state.assigned_s = 0.0
    assert decide(fixed(), 100.0, [], [state, *others]).allocations == {}
    assert decide(fixed(), 600.0, [], [state, *others]).allocations == {"a": state.allocation}


@pytest.mark.parametrize(
    ("waits", "delay"),
    [
        ([], 6),  # nobody waited: 1, and the least is 6
        ([1.0, 2.0, 3.0], 6),
        ([8.0, 10.0, 12.0], 14),  # 10 + 2 * 1.633 = 13.27
        ([10.0], 10),
        ([50.0, 50.0], 39),  # 0.8 * 48 = 38.4
    ],
)
def test_the_tuner_of_racks(waits: list[float], delay: float) -> None:
    assert tuned_rack_delay(waits, history=48) == delay


@pytest.mark.parametrize(("waits", "delay"), [([], 12), ([8.0, 10.0, 12.0], 14), ([2.0], 12), ([50.0], 48)])
def test_the_tuner_of_networks(waits: list[float], delay: float) -> None:
    assert tuned_network_delay(waits, history=48) == delay


def test_the_tuner_learns_by_size_and_forgets() -> None:
    tuned = Dally(lease_s=LEASE_S, history=48)
    assert tuned.delays_s(2, 0.0, RACKS) == (600.0, 1200.0)
    for wait, name in ((8.0, "a"), (10.0, "b"), (12.0, "c")):
        decide(tuned, 2000.0, [waiting(name, 2, 2000.0 - wait * LEASE_S)], [])
    decide(tuned, 2000.0, [waiting("short", 2, 2000.0 - 0.9 * LEASE_S)], [])  # less than a lease is no wait
    assert tuned.delays_s(2, 2000.0, RACKS) == (1400.0, 1200.0)
    assert tuned.delays_s(1, 2000.0, RACKS) == (600.0, 1200.0)
    assert tuned.delays_s(2, 2000.0 + 48 * LEASE_S, RACKS)[0] == 1400.0
    assert tuned.delays_s(2, 2001.0 + 48 * LEASE_S, RACKS)[0] == 600.0


def test_waits_for_a_rack_teach_the_delay_before_other_racks() -> None:
    tuned = Dally(lease_s=LEASE_S, history=48)
    running = [holding("x", (0, 2)), holding("y", (1, 2)), holding("z", (2, 4)), holding("v", (3, 4))]
    decision = decide(tuned, 2000.0, [waiting("a", 4)], running)
    assert RACKS.placement(decision.allocations["a"]).level == Level.RACK
    assert tuned.delays_s(4, 2000.0, RACKS) == (600.0, 2000.0)


def test_a_job_that_fits_no_machine_has_no_delay() -> None:
    assert fixed().delays_s(5, 0.0, RACKS) == (0.0, 1200.0)
    assert fixed().delays_s(9, 0.0, RACKS) == (0.0, 0.0)


def test_new_jobs_then_those_that_the_network_slowed_most() -> None:
    """One machine is left: the new job takes it, then the slowest, and the most efficient has to go."""
    busy = [holding("x", (0, 4)), holding("y", (1, 4))]
    slowed = holding("slowed", (2, 4), done=50.0, held_gpu_s=400.0, until_s=0.0)
    efficient = holding("efficient", (3, 4), done=99.0, held_gpu_s=400.0, until_s=0.0)
    assert set(decide(fixed(), 0.0, [waiting("new", 4)], [*busy, slowed, efficient]).allocations) == {"new", "slowed"}
    assert set(decide(fixed(), 0.0, [], [*busy, slowed, efficient]).allocations) == {"slowed", "efficient"}


def test_ties_go_to_who_was_assigned_earlier() -> None:
    busy = [holding(name, (index, 4)) for index, name in enumerate("xyz")]
    queue = [waiting("b", 4, 5.0), waiting("a", 4, 3.0)]
    assert set(decide(fixed(), 10.0, queue, busy).allocations) == {"a"}


def test_nobody_loses_a_lease() -> None:
    efficient = [holding(f"{index}", (index, 4), done=99.0, held_gpu_s=400.0, until_s=50.0) for index in range(4)]
    assert decide(fixed(), 0.0, [waiting("new", 4)], efficient).allocations == {}
    assert "new" in decide(fixed(), 50.0, [waiting("new", 4)], efficient).allocations


def test_efficiency_is_ideal_over_attained_gpu_time() -> None:
    state = holding("a", (0, 4), done=50.0, held_gpu_s=400.0)
    assert fixed().efficiency(state, 0.0, RACKS, AsMeasured()) == 0.5
    assert fixed().efficiency(waiting("new", 4), 0.0, RACKS, AsMeasured()) == 0.0


def test_the_levels_by_time() -> None:
    assert [allowed(now_s, 10.0, 20.0, 40.0) for now_s in (29.0, 30.0, 49.0, 50.0)] == [
        Level.MACHINE,
        Level.RACK,
        Level.RACK,
        Level.NETWORK,
    ]


def run(chosen: Dally, cluster: str = "2x2x4") -> Simulated:
    """Four GPUs in each of four machines; two of each are busy for 300 s when a job for four comes."""
    shape = parse_cluster(cluster)
    jobs = [Job(f"b{n}", 0.0, 3, samples=300.0, batch=3, step_s=3.0, model="M") for n in range(4)]
    jobs.append(Job("wide", 1.0, 4, samples=1000.0, batch=4, step_s=4.0, model="M"))
    speeds = PenalisedSpeeds(shape, Penalties([ModelPenalties("V100", "M", (2, 4), (3.0, 3.0))]))
    return simulate(jobs, shape, chosen, speeds, restart_s=0.0)


def test_the_three_relatives_end_to_end() -> None:
    """No-wait starts at once on four machines, at a third of the speed, and moves when its lease is over; with delays
    the job starts when the busy ones end."""
    outcomes = {
        type(chosen).__name__: next(each for each in run(chosen).outcomes if each.job.job_id == "wide")
        for chosen in (NoWait(lease_s=400.0), Consolidate(lease_s=400.0), Dally(lease_s=400.0))
    }
    assert outcomes["NoWait"].first_start_s == 1.0
    assert outcomes["NoWait"].comm_gpu_s > 0
    for name in ("Consolidate", "Dally"):
        assert outcomes[name].first_start_s == pytest.approx(300.0)
        assert outcomes[name].comm_gpu_s == 0
        assert outcomes[name].end_s == pytest.approx(1300.0)


def test_consolidation_never_gives_up() -> None:
    assert Consolidate().delays_s(4, 0.0, RACKS) == (math.inf, math.inf)
    assert NoWait().delays_s(4, 0.0, RACKS) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["dally;lease_s=0", "dally;rack_delay=-2", "dally;history=nan", "no-wait;lease_s=-1"])
def test_bad_parameters(text: str) -> None:
    with pytest.raises(UserError, match="must be more than 0"):
        policy_factory(text)()


def test_a_job_that_waited_for_too_long_goes_first_and_anywhere() -> None:
    bounded = Dally(rack_delay=6, network_delay=12, lease_s=LEASE_S, max_wait=3)
    full = [holding("x", (0, 2)), holding("y", (1, 4)), holding("z", (2, 2)), holding("v", (3, 4))]
    queue = [waiting("a", 4), waiting("b", 1, since_s=250.0)]
    early = decide(bounded, 299.0, queue, full)
    assert "a" not in early.allocations
    assert early.wake_s == 300.0
    assert decide(bounded, 300.0, queue, full).allocations == {"a": Allocation(((0, 2), (2, 2)))}


def test_what_comes_free_is_kept_for_a_job_that_waited_for_too_long() -> None:
    bounded = Dally(rack_delay=6, network_delay=12, lease_s=LEASE_S, max_wait=3)
    full = [holding("x", (0, 3)), holding("y", (1, 4)), holding("z", (2, 4), until_s=0.0), holding("v", (3, 4))]
    queue = [waiting("a", 8), waiting("b", 1, since_s=250.0)]
    assert decide(bounded, 299.0, queue, full).allocations.keys() == {"b", "z"}
    assert decide(bounded, 300.0, queue, full).allocations == {}


def test_no_job_waits_much_longer_than_the_bound() -> None:
    """One job of all GPUs among many of half of them, which always find some first."""
    jobs = [Job("all", 50.0, 16, samples=300.0, batch=1, step_s=1.0)]
    jobs += [Job(str(number), 90.0 * number, 8, samples=200.0, batch=1, step_s=1.0) for number in range(60)]

    def longest_s(**options: float) -> float:
        chosen = Dally(lease_s=LEASE_S, **options)
        outcomes = simulate(jobs, RACKS, chosen, AsMeasured(), restart_s=0.0).outcomes
        assert len(outcomes) == len(jobs)
        return next(outcome.waited_s for outcome in outcomes if outcome.job.job_id == "all")

    assert longest_s() > 4000
    assert longest_s(max_wait=10) <= 11 * LEASE_S
