"""The search: the optimum of small jobs by trying everything, and what always holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.problem import Problem, SplitStrategy
from ddlprof.extensions.hetero.search import SPEED_AR, make_plan, search, uniform
from ddlprof.extensions.hetero.simulation import simulate
from ddlprof.extensions.hetero.training import divided
from tests.extensions.hetero.problems import apart, problem


def splits(batch: int, devices: int) -> Iterator[tuple[int, ...]]:
    if devices == 1:
        yield (batch,)
    else:
        for count in range(batch + 1):
            yield from ((count, *rest) for rest in splits(batch - count, devices - 1))


def every_strategy(job: Problem) -> Iterator[SplitStrategy]:
    for samples in splits(job.batch, len(job.devices)):
        used = [index for index, count in enumerate(samples) if count]
        for servers in product([None, *used], repeat=len(job.groups)):
            for by_rank in (False, True):
                yield SplitStrategy(samples, servers, by_rank)


def toy(seed: int) -> Problem:
    """Up to four groups and three devices, so that communication may or may not matter."""
    dice = random.Random(seed)
    devices = dice.choice([2, 2, 3])
    batch = 4 if devices == 3 else dice.randint(3, 8)
    groups = dice.randint(1, 3 if devices == 3 else 4)
    machines = tuple(GpuNode(f"m{number}", 1, 10.0, dice.choice([0.5, 1.0, 5.0])) for number in range(devices))
    sizes = tuple(dice.choice([0.0, 1e6, 2e7, 2e8]) for _ in range(groups))
    each_s = tuple(dice.choice([0.004, 0.01, 0.03]) for _ in range(devices))
    return problem(each_s, sizes, batch, Devices(machines), update_s=0.002)


@pytest.mark.parametrize("seed", range(12))
def test_on_toys_it_finds_the_optimum(seed: int) -> None:
    job = toy(seed)
    best = min(simulate(job, strategy).step_s for strategy in every_strategy(job))
    assert simulate(job, search(job, evaluations=600)).step_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_a_uniform_plan_and_finds_the_same_again(seed: int) -> None:
    dice = random.Random(seed)
    machines = tuple(GpuNode(f"m{n}", dice.randint(1, 2), 10.0, dice.choice([1.0, 5.0])) for n in range(3))
    devices = Devices(machines)
    each_s = tuple(dice.uniform(0.001, 0.01) for _ in range(len(devices)))
    job = problem(each_s, tuple(dice.uniform(1e5, 3e8) for _ in range(5)), 64, devices)
    plan = make_plan(job, evaluations=150)
    assert plan.best.step is not None
    assert all(each.step is None or each.step.step_s >= plan.best.step.step_s for each in plan.uniform)
    assert plan.best.strategy == search(job, evaluations=150)
    assert sum(plan.best.strategy.samples) == 64


def test_where_communication_costs_more_than_it_brings_one_device_is_used() -> None:
    job = problem((0.001, 0.001), (1e9,), 8)
    assert search(job).used == (0,)


def test_memory_limits_the_shares() -> None:
    job = problem((0.001, 0.1), (1e3,), 10, limits=(6, 5))
    plan = make_plan(job)
    assert plan.best.strategy.samples == (6, 4)
    by_speed = next(each for each in plan.uniform if each.name == SPEED_AR)
    assert by_speed.step is None
    with pytest.raises(UserError, match="holds 11"):
        search(problem((0.001, 0.1), (1e3,), 12, limits=(6, 5)))


def test_uniform_plans_split_evenly_or_by_speed_and_share_out_the_servers() -> None:
    job = problem((0.01, 0.03), (5e7, 1e6, 3e7), 8, apart(2))
    four = list(uniform(job).values())
    assert [each.samples for each in four] == [(4, 4), (4, 4), (6, 2), (6, 2)]
    assert four[0].servers == (None, None, None)
    assert sorted(set(four[1].servers)) == [0, 1]  # type: ignore[type-var]


def test_shares_add_up() -> None:
    assert divided(10, [1, 1, 1]) == (4, 3, 3)
    assert divided(1, [1, 5]) == (0, 1)
