"""AITurbo and Optimus: Borda's count and the sizes by hand, and what becomes of them without a forecast."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobOutcome, JobState, forecasts
from ddlprof.extensions.cluster.machines import Allocation, Placement, parse_cluster
from ddlprof.extensions.cluster.policies.aiturbo import Aiturbo, Optimus, RemainingTimes, scores
from ddlprof.extensions.cluster.policies.las import Las
from ddlprof.extensions.cluster.policy import Policy
from ddlprof.extensions.cluster.simulation.core import simulate
from ddlprof.extensions.cluster.speeds import StepTime
from scripts.lab.as_measured import AsMeasured


class Halving:
    """Each doubling of the GPUs takes 40 % off the step, within a machine and between: GPU-seconds grow by a fifth."""

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        step_s = {1: 1.0, 2: 0.6, 3: 0.45, 4: 0.36}.get(placement.gpus, 1.0)
        return StepTime(step_s, step_s, step_s)


def state(name: str, gpus: int, samples: float, expected: float | None, max_gpus: int | None = None) -> JobState:
    job = Job(name, 0.0, gpus, samples, 100, step_s=1.0, max_gpus=max_gpus)
    return JobState(job, changed_s=0.0, expected_samples=expected)


def test_bordas_count_by_hand() -> None:
    # Two of four are predictable: the two positions by benefit, 0 and 1, are stretched over four: 0.5 and 2.5.
    assert scores(["a", "b", "c", "d"], ["d", "b"]) == {"a": 0.0, "b": 3.5, "c": 4.0, "d": 3.5}
    assert scores(["a", "b"], []) == {"a": 0.0, "b": 2.0}
    assert scores(["a", "b", "c"], ["c", "b", "a"]) == {"a": 2.0, "b": 2.0, "c": 2.0}


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_being_predictable_is_no_advantage_by_itself(known: list[bool]) -> None:
    served = [str(number) for number in range(len(known))]
    predictable = [job_id for job_id, is_known in zip(served, known, strict=True) if is_known]
    found = scores(served, predictable)
    if predictable:
        places = [found[job_id] - served.index(job_id) for job_id in predictable]
        assert sum(places) / len(places) == pytest.approx((len(served) - 1) / 2)


def test_what_remains_is_what_orders_by_benefit() -> None:
    cluster = parse_cluster("1x4")
    forecast = RemainingTimes(cluster, Halving(), 0.0, 0.0)
    long, short, unknown = state("long", 1, 9000, 9000), state("short", 2, 3000, 3000), state("unknown", 1, 100, None)
    assert forecast.remaining_gpu_s(long) == pytest.approx(90)
    assert forecast.remaining_gpu_s(short) == pytest.approx(30 * 0.6 * 2)
    order = Aiturbo().ordered([long, short, unknown], forecast)
    # Positions by service are 0, 1, 2 (by name); by benefit short 0.25 and long 1.75.
    assert [each.job.job_id for each in order] == ["short", "long", "unknown"]
    order = Optimus().ordered([unknown, long, short], forecast)
    assert [each.job.job_id for each in order] == ["short", "long", "unknown"]


def test_sizes_by_hand() -> None:
    forecast = RemainingTimes(parse_cluster("1x4"), Halving(), 0.0, 0.0)
    a, b = state("a", 2, 1000, 1000, 4), state("b", 2, 5000, 5000, 4)
    assert (forecast.cheapest(a), forecast.cheapest(b)) == (1, 1)
    # One each; the third GPU saves b 20 s and a 4 s, the fourth saves b 7.5 s and a 4 s.
    assert forecast.shared_out([a, b]) == {"a": 1, "b": 3}
    rigid = state("rigid", 2, 1000, 1000)
    assert forecast.shared_out([rigid, b]) == {"rigid": 2, "b": 2}
    unknown = state("unknown", 2, 1000, None, 4)
    assert forecast.shared_out([unknown, b]) == {"unknown": 2, "b": 2}
    assert RemainingTimes(parse_cluster("1x4"), Halving(), 0.0, 30.0).shared_out([a]) == {"a": 4}  # it runs nowhere yet


def test_a_running_job_changes_only_where_that_pays_for_the_restart() -> None:
    runs = state("a", 1, 4000, 4000, 4)
    runs.allocation = Allocation(((0, 1),))
    # 40 s on one GPU, 14.4 s on four: 25.6 s less.
    assert RemainingTimes(parse_cluster("1x4"), Halving(), 0.0, 30.0).shared_out([runs]) == {"a": 1}
    assert RemainingTimes(parse_cluster("1x4"), Halving(), 0.0, 25.0).shared_out([runs]) == {"a": 4}


def ends(outcomes: list[JobOutcome]) -> list[tuple[str, float, int]]:
    return [(outcome.job.job_id, round(outcome.end_s, 3), outcome.starts) for outcome in outcomes]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 8), st.integers(60, 9000)), min_size=1, max_size=15),
    st.sampled_from([Aiturbo, Optimus]),
)
def test_without_a_forecast_they_are_las(drawn: list[tuple[int, int, int]], kind: type[Aiturbo]) -> None:
    jobs = [Job(f"{n}", float(at), gpus, float(s), 1, 1.0, max_gpus=8) for n, (at, gpus, s) in enumerate(drawn)]
    cluster = parse_cluster("2x4")

    def run(policy: Policy) -> list[tuple[str, float, int]]:
        return ends(simulate(jobs, cluster, policy, AsMeasured(), expect=forecasts(0.0, 0.25, 1)).outcomes)

    assert run(kind(limit_gpu_h=0.5, queues=3)) == run(Las(limit_gpu_h=0.5, queues=3))


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(UserError, match="round_s"):
        Aiturbo(round_s=0)
