"""The search for stages: the optimum of small jobs by trying everything, and what always holds."""

from __future__ import annotations

import pytest

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.stages.problem import StagedProblem, StagedStrategy, fits, group_cost, memory_of
from ddlprof.extensions.hetero.stages.programme import _joined, _seconds
from ddlprof.extensions.hetero.stages.schedule import moves_s, simulate_stages
from ddlprof.extensions.hetero.stages.search import make_staged_plan, search_stages, uniform_stages
from tests.extensions.hetero.problems import apart
from tests.extensions.hetero.stages.problems import MB, every_strategy, layered, toy


def least_s(job: StagedProblem, strategy: StagedStrategy) -> float:
    """The bound of the dynamic programme for a given strategy."""
    found = None
    before_s = [0.0, *moves_s(job, strategy.stages)]
    for stage, from_before_s in zip(strategy.stages[::-1], before_s[::-1], strict=True):
        seconds = _seconds(group_cost(job, stage, strategy.micro_batches), stage.first, stage.end)
        found = _joined(seconds, strategy.micro_batches, from_before_s, found, stage)
    assert found is not None
    return found.all_s


@pytest.mark.parametrize("seed", range(24))
def test_on_small_jobs_it_finds_the_optimum_and_says_so(seed: int) -> None:
    job = toy(seed)
    every = [each for each in every_strategy(job) if fits(job, each)]
    found = search_stages(job)
    if not every:
        assert found is None
        return
    assert found is not None
    steps = {each: simulate_stages(job, each).step_s for each in every}
    assert found.step.step_s == pytest.approx(min(steps.values()), rel=1e-9)
    assert found.exact
    assert fits(job, found.strategy)
    assert all(least_s(job, each) <= step_s * (1 + 1e-9) for each, step_s in steps.items())


def test_without_the_simulations_that_it_would_take_it_says_that_nothing_is_proved() -> None:
    found = search_stages(toy(12), most_simulated=0)
    assert found is not None
    assert not found.exact


def test_layers_follow_speed_and_memory() -> None:
    by_speed = search_stages(layered((0.01, 0.03), 4, 64, devices=apart(2, gb_s=0.01)))
    assert by_speed is not None
    assert {each.devices: each.end - each.first for each in by_speed.strategy.stages} == {(0,): 3, (1,): 1}
    by_memory = search_stages(layered((0.01, 0.03), 4, 4, limits=(9 * MB, 40 * MB)))
    assert by_memory is not None
    layers = {each.devices[0]: each.end - each.first for each in by_memory.strategy.stages}
    assert layers == {0: 1, 1: 3}  # 4 MB of states and some activations for each layer
    assert search_stages(layered((0.01, 0.03), 4, 4, limits=(9 * MB, 9 * MB))) is None


def test_a_stage_of_few_layers_gets_replicas() -> None:
    found = search_stages(layered((0.01, 0.02, 0.02), 2, 32, limits=(None, 7 * MB, 7 * MB)))
    assert found is not None
    assert sorted(len(each.devices) for each in found.strategy.stages) == [1, 2]
    assert max(found.step.memory_bytes[device] for device in (1, 2)) <= 7 * MB


def test_neighbours_are_on_the_fast_links() -> None:
    devices = Devices((GpuNode("a", 2, 50.0, 0.005), GpuNode("b", 2, 50.0, 0.005)))
    found = search_stages(layered((0.1, 0.1, 0.1, 0.1), 8, 8, devices=devices, passed=0.1 * MB, limits=[20 * MB] * 4))
    assert found is not None
    machines = [devices.all[each.devices[0]].machine for each in found.strategy.stages]
    assert machines in ([0, 0, 1, 1], [1, 1, 0, 0])  # a slow link is crossed once


@pytest.mark.parametrize("gpus", [(2, 2, 2, 2), (4, 4, 4)])
def test_many_devices_get_no_worse_plan_than_one_that_needs_no_search(gpus: tuple[int, ...]) -> None:
    devices = Devices(tuple(GpuNode(f"m{number}", each, 10.0, 1.0) for number, each in enumerate(gpus)))
    speeds = [0.004 * (1 + device.machine) for device in devices.all]
    limits = [(20.0 + 10 * device.machine) * MB for device in devices.all]
    job = layered(speeds, 24, 32, devices=devices, passed=1e5, limits=limits)
    plan = make_staged_plan(job)
    assert plan is not None
    assert not plan.best.exact
    assert all(need <= limits[device] for device, need in memory_of(job, plan.best.strategy).items())
    assert [layer for each in plan.best.strategy.stages for layer in range(each.first, each.end)] == list(range(24))
    uniform = [simulate_stages(job, each).step_s for each in uniform_stages(job) if fits(job, each)]
    assert all(plan.best.step.step_s <= each for each in uniform)
    assert (plan.uniform is None) == (not uniform)
