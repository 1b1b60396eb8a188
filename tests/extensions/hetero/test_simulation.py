"""The step on the clock, by hand and by what always holds."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.problem import Problem, SplitStrategy
from ddlprof.extensions.hetero.simulation import SimulatedStep, simulate
from tests.extensions.hetero.problems import apart, problem

GB = 1e9


def test_one_device_exchanges_nothing() -> None:
    step = simulate(problem((0.1, 0.1), (GB,), 4, update_s=0.5), SplitStrategy((4, 0), (None,)))
    assert step.step_s == pytest.approx(0.3 * 4 + 0.5)
    assert step.exposed_s == 0
    assert step.order == ()


def test_an_all_reduce_waits_for_the_slowest_and_moves_two_messages_of_half_the_bytes() -> None:
    job = problem((0.1, 0.2), (GB,), 2, apart(2, latency_s=0.01))
    step = simulate(job, SplitStrategy((1, 1), (None,)))
    assert step.step_s == pytest.approx(0.6 + 2 * (0.5 + 0.01))
    assert step.slowest == 1
    assert step.compute_s == pytest.approx(0.6)


def test_a_server_adds_up_all_shares_and_then_hands_out_the_sum() -> None:
    job = problem((0.1, 0.1, 0.1), (GB,), 3, apart(3, latency_s=0.01))
    step = simulate(job, SplitStrategy((1, 1, 1), (0,)))
    assert step.step_s == pytest.approx(0.3 + 2 * 1.01 + 2 * 1.01)  # both pushes share the server's link, then pulls


def test_the_slowest_link_of_a_ring_counts() -> None:
    devices = Devices((GpuNode("a", 2, 8.0, 4.0), GpuNode("b", 1, 8.0, 1.0)))
    assert devices.slowest_gb_s((0, 1)) == 8.0
    assert devices.slowest_gb_s((0, 2)) == 1.0


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, SplitStrategy]:
    machines = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    speeds = st.sampled_from([0.5, 1.0, 4.0])
    devices = Devices(
        tuple(GpuNode(f"m{n}", gpus, draw(speeds), draw(speeds)) for n, gpus in enumerate(machines)), 1e-3
    )
    count = len(devices)
    sizes = draw(st.lists(st.sampled_from([0.0, 1e6, 5e7, 1e9]), min_size=1, max_size=4))
    samples = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any))
    each = draw(st.lists(st.sampled_from([0.01, 0.03, 0.2]), min_size=count, max_size=count))
    used = [index for index, n in enumerate(samples) if n]
    servers = draw(st.lists(st.sampled_from([None, *used]), min_size=len(sizes), max_size=len(sizes)))
    job = problem(tuple(each), tuple(sizes), sum(samples), devices, update_s=0.01)
    return job, SplitStrategy(tuple(samples), tuple(servers), draw(st.booleans()))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_nothing_overlaps_on_a_lane_and_everything_is_exchanged_before_the_update(
    case: tuple[Problem, SplitStrategy],
) -> None:
    job, strategy = case
    step = simulate(job, strategy, traced=True)
    assert step.step_s >= step.compute_s - 1e-9
    assert step == SimulatedStep(**{**simulate(job, strategy).__dict__, "slices": step.slices})
    lanes = defaultdict(list)
    for each in step.slices:
        lanes[each.lane].append(each)
        assert 0 <= each.begin_s < each.end_s <= step.step_s + 1e-9
    for slices in lanes.values():
        slices.sort(key=lambda each: each.begin_s)
        for one, following in pairwise(slices):
            assert one.end_s <= following.begin_s + 1e-9
    if len(strategy.used) > 1:
        assert set(step.order) == {number for number, group in enumerate(job.groups) if group.gradient_bytes}
    for device in strategy.used:
        update = [each for each in lanes["device", device] if each.name == "optimizer"]
        backward = [each for each in lanes["device", device] if each.name == "backward"]
        assert update[0].begin_s >= max(each.end_s for each in backward) - 1e-9
