"""The simulation on jobs small enough to follow by hand, and policies that cheat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobState, Simulated
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level, Placement, parse_cluster
from ddlprof.extensions.cluster.policies.fifo import Fifo
from ddlprof.extensions.cluster.policy import Decision, Policy
from ddlprof.extensions.cluster.simulation import core
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.simulation.metrics import comm_by_dimension, job_rows
from ddlprof.extensions.cluster.speeds import Speeds, StepTime
from scripts.lab.as_measured import AsMeasured


def job(name: str, submit_s: float, gpus: int, duration_s: float) -> Job:
    return Job(name, submit_s, gpus, samples=duration_s, batch=1, step_s=1.0)


def at(*parts: tuple[int, int]) -> Allocation:
    return Allocation(parts)


class Scripted:
    """Decides as a table says: from which second on, who holds what."""

    round_s: float | None = None

    def __init__(self, *table: tuple[float, dict[str, Allocation]], lease_s: float = 0.0, wakes: bool = True) -> None:
        self.lease_s = lease_s
        self.asked: list[float] = []
        self._table = table
        self._wakes = wakes

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        self.asked.append(now_s)
        present = {state.job.job_id for state in (*queue, *running)}
        given = [given for from_s, given in self._table if from_s <= now_s][-1]
        later = [from_s for from_s, _ in self._table if from_s > now_s]
        wake_s = later[0] if later and self._wakes else None
        return Decision({name: held for name, held in given.items() if name in present}, wake_s)


def run(policy: Policy, jobs: Sequence[Job], cluster: str = "2x4", restart_s: float = 30.0) -> Simulated:
    return simulate(jobs, parse_cluster(cluster), policy, AsMeasured(), restart_s=restart_s)


def ends(simulated: Simulated) -> dict[str, float]:
    return {outcome.job.job_id: outcome.end_s for outcome in simulated.outcomes}


def test_a_job_that_was_stopped_goes_on_where_it_was_after_its_restart() -> None:
    policy = Scripted((0, {"a": at((0, 4))}), (40, {"b": at((0, 4))}), (50, {"a": at((1, 4))}))
    simulated = run(policy, [job("a", 0, 4, 100), job("b", 40, 4, 10)])
    assert ends(simulated) == {"b": 50, "a": 50 + 30 + 60}
    (a,) = [outcome for outcome in simulated.outcomes if outcome.job.job_id == "a"]
    assert (a.starts, a.waited_s, a.held_gpu_s, a.first_start_s) == (2, 10, 4 * 130, 0)
    assert simulated.usage == [(0, 4, 0), (40, 4, 1), (50, 4, 0), (140, 0, 0)]


def test_another_batch_is_another_speed_from_then_on() -> None:
    elastic = replace(job("a", 0, 2, 100), batch=10, samples=1000, min_batch=5, max_batch=40, max_gpus=2)
    policy = Scripted((0, {"a": at((0, 2))}), (50, {"a": replace(at((0, 2)), batch=40)}))
    assert ends(run(policy, [elastic], restart_s=0)) == {"a": 50 + 500 / 40}


def test_a_lease_protects_what_was_given_until_it_is_over() -> None:
    policy = Scripted((0, {"a": at((0, 4))}), (20, {"b": at((1, 4))}), (120, {"a": at((1, 4))}), lease_s=100)
    simulated = run(policy, [job("a", 0, 4, 150), job("b", 10, 4, 50)])
    assert policy.asked == [0, 10, 20, 70, 100, 120], "at 100, because the lease is over"
    assert ends(simulated) == {"b": 70, "a": 120 + 30 + 50}


def test_all_of_one_moment_is_one_question() -> None:
    table = {"a": at((0, 4)), "b": at((1, 4)), "c": at((0, 1)), "d": at((0, 1))}
    policy = Scripted((0, table), lease_s=math.inf)
    simulated = run(
        policy, [job("a", 0, 4, 100), job("b", 0, 4, 100), job("c", 100, 1, 1), job("d", 100.0000001, 1, 1)]
    )
    assert policy.asked == [0, 100]
    assert ends(simulated)["a"] == 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": at((0, 4)), "b": at((0, 4))}, "gave job b GPUs that are not free"),
        ({"a": at((0, 5))}, "gave job a GPUs that are not free"),
        ({"a": at((7, 4))}, "gave job a GPUs that are not free"),
        ({"a": at((-1, 4))}, "gave job a GPUs that are not free"),
        ({"a": at((0, 2), (0, 2))}, "gave job a GPUs that are not free"),
        ({"a": at((1, 2), (0, 2))}, "gave job a GPUs that are not free"),
        ({"a": at()}, "gave job a GPUs that are not free"),
        ({"a": at((0, 5), (1, -1))}, "gave job a GPUs that are not free"),
        ({"a": at((0, 3))}, "gave job a 3 GPUs; it can use 4 to 4"),
        ({"a": replace(at((0, 4)), batch=2)}, "gave job a a batch of 2, which it cannot use"),
        ({"a": at((1, 2), (2, 2))}, "gave job a GPUs of several models"),
    ],
)
def test_a_policy_cannot_give_away_what_is_not_there(given: dict[str, Allocation], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(Scripted((0, given)), [job("a", 0, 4, 10), job("b", 0, 4, 10)], "2x4,1x2:T4")


def test_a_policy_cannot_run_a_job_that_is_not_there() -> None:
    policy = Scripted((0, {}))
    policy.decide = lambda *_: Decision({"ghost": at((0, 1))})  # type: ignore[method-assign]
    with pytest.raises(UserError, match="gave GPUs to job ghost, which is not there"):
        run(policy, [job("a", 0, 1, 1)])


def _always(decision: Callable[[float], Decision], lease_s: float, round_s: float | None) -> Scripted:
    policy = Scripted((0, {}), lease_s=lease_s)
    policy.round_s = round_s
    policy.decide = lambda now_s, *_: decision(now_s)  # type: ignore[method-assign]
    return policy


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (_always(lambda now_s: Decision(), 0, None), "never runs job a, which asks for 4 GPUs"),
        (_always(lambda now_s: Decision(), 0, 60), "never runs job a, which asks for 4 GPUs"),
        (_always(lambda now_s: Decision(wake_s=now_s), 0, None), "asked again at once, for ever"),
        (
            _always(lambda now_s: Decision({"a": at((int(now_s / 20) % 2, 4))}), 0, 20),
            "stops every job before it has made progress",
        ),
    ],
)
def test_a_simulation_that_would_never_end_is_ended(
    policy: Scripted, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "IDLE_DECISIONS", 2_000)
    monkeypatch.setattr(core, "FRUITLESS_STOPS", 300)
    with pytest.raises(UserError, match=said):
        run(policy, [job("a", 0, 4, 100)])


def test_jobs_that_cannot_be() -> None:
    with pytest.raises(UserError, match="job a asks for 16 GPUs, and the cluster has 8"):
        run(Fifo(), [job("a", 0, 16, 1)], "2x4,2x4:T4")
    with pytest.raises(UserError, match="two jobs have the same job_id"):
        run(Fifo(), [job("a", 0, 1, 1), job("a", 0, 1, 1)])
    for wrong in (replace(job("a", 0, 1, 1), samples=math.nan), job("a", math.nan, 1, 1), job("a", 0, 1, 0)):
        with pytest.raises(UserError, match="job a: its submission, samples, batch and GPUs"):
            run(Fifo(), [wrong])


@pytest.mark.parametrize("step", [StepTime(0, 0, 0), StepTime(math.nan, 1, 1), StepTime(1, 1, 1, comm_s=2)])
def test_a_step_that_cannot_be(step: StepTime) -> None:
    class Silly:
        def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
            return step

    with pytest.raises(UserError, match="job a: a step cannot take"):
        simulate([job("a", 0, 1, 1)], parse_cluster("1x1"), Fifo(), Silly())


def test_no_jobs_are_no_time() -> None:
    assert run(Fifo(), []) == Simulated([], [])


def test_times_so_large_that_a_microsecond_is_lost_still_go_on() -> None:
    simulated = run(Fifo(), [job("a", 1e15, 4, 1e15), job("b", 1e15, 8, 1e15)])
    assert ends(simulated) == {"a": 2e15, "b": 3e15}


class WithDimensions:
    """A step of a second, of which communication takes more where a job is spread."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        by_dimension = {"tensor": 0.25} if placement.level == Level.MACHINE else {"tensor": 0.25, "data": 0.5}
        return StepTime(1.0, 1.0, 1.0, sum(by_dimension.values()), by_dimension)


def test_communication_of_a_layout_is_told_by_dimension_over_all_placements() -> None:
    """Two machines with two GPUs: first spread for 100 s, then on one machine for 300 s after a restart."""
    job = Job("a", 0.0, 2, samples=400.0, batch=1, step_s=1.0)

    class Moved:
        lease_s, round_s = 0.0, None

        def decide(self, now_s: float, *rest: object) -> Decision:
            parts = ((0, 1), (1, 1)) if now_s < 100 else ((1, 2),)
            return Decision({"a": Allocation(parts)}, wake_s=100.0 if now_s < 100 else None)

    simulated = simulate([job], parse_cluster("2x2"), Moved(), WithDimensions(), restart_s=30.0)
    (outcome,) = simulated.outcomes
    assert outcome.comm_dimensions == {"tensor": pytest.approx(0.25 * 2 * 400), "data": pytest.approx(0.5 * 2 * 100)}
    assert sum(outcome.comm_dimensions.values()) == pytest.approx(outcome.comm_gpu_s)
    assert comm_by_dimension(simulated) == {"tensor": pytest.approx(200 / 3600), "data": pytest.approx(100 / 3600)}
    (row,) = job_rows(simulated, 4)
    assert row.comm_dimensions == "tensor=0.0555556;data=0.0277778"
