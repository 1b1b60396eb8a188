"""AITurbo on GPUs and CPU nodes: worth and replays by hand, the optimum of small traces, and no harm by nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job, JobOutcome, forecasts
from ddlprof.extensions.cluster.machines import Allocation, parse_cluster
from ddlprof.extensions.cluster.policies.aiturbo import Aiturbo, Optimus
from ddlprof.extensions.cluster.policies.cpu_nodes import next_for_cpus, projected_starts_s, worth_s
from ddlprof.extensions.cluster.policies.replay import Needs, total_completion_s
from ddlprof.extensions.cluster.policy import Decision
from ddlprof.extensions.cluster.simulation.core import simulate
from scripts.lab.as_measured import AsMeasured

NONE = np.array([])


def job(name: str, seconds: float, *cpu_s: float, gpus: int = 1, submit_s: float = 0.0) -> Job:
    """It takes so long on its GPUs, and so long on 1, 2, ... CPU nodes."""
    steps = tuple(each / seconds for each in cpu_s)
    return Job(name, submit_s, gpus, seconds * 64, 64, 1.0, cpu_steps_s=steps)


def outcomes(
    jobs: Sequence[Job],
    shape: str,
    cpu_nodes: int,
    restart_s: float = 0.0,
    kind: type[Aiturbo] = Aiturbo,
    predictable: float = 1.0,
) -> dict[str, JobOutcome]:
    cluster = replace(parse_cluster(shape), cpu_nodes=cpu_nodes)
    found = simulate(
        jobs,
        cluster,
        kind(limit_gpu_h=0.5, restart_s=restart_s),
        AsMeasured(),
        restart_s=restart_s,
        expect=forecasts(predictable, 0.0, 0),
    )
    return {outcome.job.job_id: outcome for outcome in found.outcomes}


def mean_s(*args: object, **kwargs: object) -> float:
    return fmean(each.completion_s for each in outcomes(*args, **kwargs).values())  # type: ignore[arg-type]


def drawn(seed: int, jobs: int, sizes: Sequence[int], gap_s: float, ratio: tuple[float, float]) -> list[Job]:
    """Jobs of a minute to five hours, that take `ratio` times as long for each of their GPUs on one CPU node."""
    rng, now_s, found = random.Random(seed), 0.0, []
    for number in range(jobs):
        gpus, seconds = rng.choice(sizes), math.exp(rng.uniform(math.log(60), math.log(18_000)))
        slower = math.exp(rng.uniform(*map(math.log, ratio)))
        found.append(job(f"j{number}", seconds, seconds * gpus * slower, gpus=gpus, submit_s=now_s))
        now_s += rng.expovariate(1 / gap_s) if gap_s else 0.0
    return found


def test_starts_by_hand() -> None:
    jobs = [Needs("a", 1, 10.0), Needs("b", 2, 5.0), Needs("c", 1, 20.0), Needs("d", 2, 1.0)]
    # c runs; then a on the other GPU, b once both are free.
    assert projected_starts_s(jobs, 2, {"c"}) == [0.0, 20.0, 0.0, 25.0]


def test_worth_by_hand() -> None:
    alone = Needs("a", 2, 100.0, cpu_s=[400.0], anew_s=100.0)
    assert worth_s(alone, 1, 0.0, NONE, 4, 30.0) == -300.0
    # It leaves 2 x 100 GPU-seconds on 4 GPUs: each job behind it starts 50 s sooner, but not before now.
    assert worth_s(alone, 1, 0.0, np.array([60.0, 20.0]), 4, 30.0) == -300.0 + 50.0 + 20.0
    assert worth_s(alone, 1, 390.0, NONE, 4, 30.0) == 390.0 + 100.0 - 400.0
    # After 200 s on a node half is done: with the restart it needs 80 s on GPUs in place of 100.
    assert worth_s(alone, 1, 200.0, NONE, 4, 30.0) == 20.0
    # After 80 s a fifth: it would rather begin anew, and nothing is lost.
    assert worth_s(alone, 1, 80.0, NONE, 4, 30.0) == 0.0


def test_a_replay_by_hand() -> None:
    a, c = Needs("a", 1, 100.0, anew_s=100.0), Needs("c", 1, 10.0, served=2, anew_s=10.0)
    b = Needs("b", 1, 50.0, cpu_s=[80.0], served=1, anew_s=50.0)
    # By served and remaining service: a 0 + 2, b 1 + 1, c 2 + 0; equal, so in the order of service.
    assert total_completion_s([a, b, c], {}, (), 1, 30.0) == 100 + 150 + 160
    # b ends on its node at 80, a at 100, c at 110.
    assert total_completion_s([a, b, c], {"b": 1}, (), 1, 30.0) == 80 + 100 + 110
    assert next_for_cpus([a, b, c], 1, {"a"}, {}, (), 1, 30.0) == ("b", 1, False)
    assert next_for_cpus([a, b, c], 1, {"a"}, {"b": 1}, (), 0, 30.0) is None


def test_a_job_leaves_the_gpus_to_another() -> None:
    jobs = [Needs("a", 1, 10.0, cpu_s=[15.0], anew_s=10.0), Needs("b", 1, 20.0, served=1, anew_s=20.0)]
    assert total_completion_s(jobs, {"a": 1}, {"a"}, 1, 0.0) == 15 + 20
    assert total_completion_s(jobs, {"a": 1}, (), 1, 0.0) == 10 + 30  # its turn has come
    assert next_for_cpus(jobs, 1, {"a"}, {}, (), 1, 0.0) == ("a", 1, True)


def best_mean_s(jobs: Sequence[Job], gpus: int, cpu_nodes: int) -> float:
    """The least mean completion of jobs of one GPU or node, all there at once and none moved, on unlike machines: the
    last job on a machine counts once, the one before it twice, and so on, which is an assignment (Horn 1973)."""
    times = [[each.ideal_s or 0.0] * gpus + [each.samples / 64 * each.cpu_steps_s[0]] * cpu_nodes for each in jobs]
    costs = np.hstack([(place + 1) * np.array(times) for place in range(len(jobs))])
    return float(costs[linear_sum_assignment(costs)].sum()) / len(jobs)


@pytest.mark.parametrize(
    ("gpus", "cpu_nodes", "jobs"),
    [
        (1, 1, [("a", 10, 100), ("b", 20, 25)]),  # b on the node: 10 and 25 in place of 10 and 30
        (1, 1, [("a", 10, 15), ("b", 20, 400)]),  # the first one leaves the GPU to the other: 15 and 20
        (1, 1, [("a", 10, 1000), ("b", 20, 2000)]),  # nobody goes
        (1, 2, [("a", 60, 300), ("b", 70, 110), ("c", 80, 160)]),
        (2, 1, [("a", 10, 100), ("b", 20, 100), ("c", 30, 35), ("d", 40, 4000)]),
        (2, 2, [("a", 10, 9), ("b", 20, 19), ("c", 30, 300)]),  # nodes that are faster than GPUs
    ],
)
def test_fixed_traces_reach_the_optimum(gpus: int, cpu_nodes: int, jobs: list[tuple[str, float, float]]) -> None:
    trace = [job(*each) for each in jobs]
    found_s = mean_s(trace, f"1x{gpus}", cpu_nodes)
    assert found_s <= best_mean_s(trace, gpus, cpu_nodes) * (1 + 1e-9)  # less where jobs move, which costs nothing here


def test_small_traces_come_near_the_optimum() -> None:
    """Shorter jobs come first in them: AITurbo's order, which counts service, too, is then the shortest first."""
    apart = []
    for seed in range(60):
        rng = random.Random(seed)
        gpus, cpu_nodes = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2)])
        trace = sorted(drawn(seed, 5, [1], 0.0, (0.8, 10.0)), key=lambda each: each.samples)
        trace = [replace(each, job_id=f"j{place}") for place, each in enumerate(trace)]
        apart.append(mean_s(trace, f"1x{gpus}", cpu_nodes) / best_mean_s(trace, gpus, cpu_nodes))
    assert fmean(apart) < 1  # jobs may move, which costs nothing here
    assert max(apart) < 1.12


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    jobs=st.integers(1, 10),
    shape=st.sampled_from(["1x1", "1x2", "2x2"]),
    cpu_nodes=st.integers(1, 4),
    gap_s=st.sampled_from([0.0, 100.0, 1000.0]),
    ratio=st.sampled_from([(0.5, 2.0), (1.0, 30.0), (5.0, 100.0)]),
    restart_s=st.sampled_from([0.0, 30.0]),
)
def test_predictable_jobs_of_one_gpu_are_never_worse_off_with_nodes(
    seed: int, jobs: int, shape: str, cpu_nodes: int, gap_s: float, ratio: tuple[float, float], restart_s: float
) -> None:
    trace = drawn(seed, jobs, [1], gap_s, ratio)
    assert mean_s(trace, shape, cpu_nodes, restart_s) <= mean_s(trace, shape, 0, restart_s) * (1 + 1e-9)


@pytest.mark.parametrize("gap_s", [0.0, 300.0, 1200.0])
@pytest.mark.parametrize("ratio", [(0.5, 2.0), (1.0, 30.0), (5.0, 100.0)])
def test_fixed_traces_of_gangs_gain(gap_s: float, ratio: tuple[float, float]) -> None:
    """Who runs beside whom is another with other ends, so a single trace may be a little worse off."""
    apart = []
    for seed in range(8):
        trace = drawn(seed, 16, [1, 1, 2, 4, 8], gap_s, ratio)
        apart.append(mean_s(trace, "2x4", 2, 30.0) / mean_s(trace, "2x4", 0, 30.0))
    assert fmean(apart) < 1
    assert max(apart) < 1.01


def test_without_jobs_for_them_nodes_change_nothing() -> None:
    trace = [replace(each, cpu_steps_s=()) for each in drawn(1, 16, [1, 2, 4], 300.0, (1.0, 30.0))]
    with_nodes, without = outcomes(trace, "2x4", 4, 30.0), outcomes(trace, "2x4", 0, 30.0)
    assert with_nodes == without
    assert sum(each.held_cpu_s for each in with_nodes.values()) == 0


def test_more_nodes_for_a_job_that_scales() -> None:
    first, second = job("a", 1000), job("b", 2000, 2000, 1000, 700)
    assert outcomes([first, second], "1x1", 3)["b"].held_cpu_s == pytest.approx(2000)  # one node costs the least
    assert outcomes([first, replace(second, cpu_steps_s=(math.inf, 0.5))], "1x1", 3)["b"].end_s == pytest.approx(1000)


def test_who_has_no_forecast_waits_on_nodes_that_nobody_else_wants() -> None:
    jobs = [job("a", 6000, 60_000), job("b", 6000, 60_000, submit_s=10.0)]
    found, without = (outcomes(jobs, "1x1", nodes, 30.0, predictable=0.0) for nodes in (1, 0))
    assert found["b"].held_cpu_s > 0
    assert all(found[name].end_s <= without[name].end_s for name in "ab")


def test_optimus_leaves_nodes_alone() -> None:
    assert outcomes([job("a", 100, 10), job("b", 100, 10)], "1x1", 2, kind=Optimus)["b"].end_s == 200


class Fixed:
    """Gives a job one thing after the other."""

    lease_s, round_s = 0.0, 100.0

    def __init__(self, *given: Allocation) -> None:
        self._given = list(given)

    def decide(self, *_: object) -> Decision:
        return Decision({"a": self._given.pop(0) if len(self._given) > 1 else self._given[0]})


NODE, GPU = Allocation((), cpu_nodes=1), Allocation(((0, 1),))
CLUSTER = replace(parse_cluster("1x1"), cpu_nodes=1)


def test_a_job_goes_on_from_a_node_or_begins_anew_where_that_is_sooner() -> None:
    def end_s(slower: float) -> float:
        of = job("a", 1000, 1000 * slower)
        return simulate([of], CLUSTER, Fixed(NODE, GPU), AsMeasured(), restart_s=30.0).outcomes[0].end_s

    assert end_s(2.0) == pytest.approx(100 + 30 + 950)  # half of 100 s are done on the node
    assert end_s(10.0) == pytest.approx(100 + 1000)  # 10 s, less than a restart


@pytest.mark.parametrize(
    "wanted", [Allocation((), cpu_nodes=2), Allocation(((0, 1),), cpu_nodes=1), Allocation((), 32, cpu_nodes=1)]
)
def test_nodes_that_are_not_there_are_refused(wanted: Allocation) -> None:
    with pytest.raises(UserError, match="CPU nodes that are not free"):
        simulate([job("a", 10, 10, 10)], CLUSTER, Fixed(wanted), AsMeasured())


def test_a_job_that_needs_gpus_gets_no_node() -> None:
    with pytest.raises(UserError, match="no step is known on 1 CPU node"):
        simulate([job("a", 10)], CLUSTER, Fixed(NODE), AsMeasured())
