"""Places on half-full clusters: as close together as they can be, and the tightest of these."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.extensions.cluster.jobs import Job, JobState
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level, parse_cluster
from ddlprof.extensions.cluster.packing import FreeGpus, PriorityAllocator

CLUSTERS = [parse_cluster(text) for text in ("5x4", "3x2x4", "2x3x2,1x2x8", "2x2x4:V100,3x3:T4,2x8:V100")]


@st.composite
def half_full(draw: st.DrawFn) -> tuple[Cluster, FreeGpus, list[int]]:
    """A cluster of which some GPUs were taken, and perhaps given back, before and after the first question."""
    cluster = draw(st.sampled_from(CLUSTERS))
    is_asked_before, gives_back = draw(st.booleans()), draw(st.booleans())
    used = [draw(st.integers(0, machine.gpus)) for machine in cluster.machines]
    held = [Allocation(((index, gpus),)) for index, gpus in enumerate(used) if gpus]
    cut = draw(st.integers(0, len(held)))
    free = FreeGpus(cluster, held[:cut])
    if is_asked_before:
        free.place(1)
    for allocation in held[cut:]:
        free.take(allocation)
    if held and gives_back:
        free.release(held[0])
        used[held[0].parts[0][0]] = 0
    return cluster, free, [machine.gpus - gpus for machine, gpus in zip(cluster.machines, used, strict=True)]


def closest(cluster: Cluster, free: list[int], gpus: int, models: tuple[str | None, ...]) -> Level | None:
    """By looking at everything."""
    for level in Level:
        for model in models:
            sums: dict[int, int] = {}
            for machine in cluster.machines:
                group = {Level.MACHINE: machine.index, Level.RACK: machine.rack, Level.NETWORK: 0}[level]
                sums[group] = sums.get(group, 0) + (free[machine.index] if machine.gpu_model == model else 0)
            if max(sums.values()) >= gpus:
                return level
    return None


@given(case=half_full(), gpus=st.integers(1, 24), data=st.data())
def test_a_place_is_free_whole_of_one_model_and_the_closest(
    case: tuple[Cluster, FreeGpus, list[int]], gpus: int, data: st.DataObject
) -> None:
    cluster, free, by_machine = case
    assert free.by_machine == by_machine
    assert free.total == sum(by_machine)
    level = data.draw(st.sampled_from(Level))
    models = data.draw(st.sampled_from([None, *((model,) for model in cluster.gpu_models), ("A100",)]))
    found = free.place(gpus, level, models)
    expected = closest(cluster, by_machine, gpus, models or cluster.gpu_models)
    if expected is None or expected > level:
        assert found is None
        return
    assert found is not None
    placement = cluster.placement(found)
    assert (found.gpus, placement.level, len(placement.gpu_models)) == (gpus, expected, 1)
    assert [index for index, _ in found.parts] == sorted({index for index, _ in found.parts})
    assert all(0 < count <= by_machine[index] for index, count in found.parts)
    assert free.fits(found)
    assert free.by_machine == by_machine, "it is not taken yet"
    if expected == Level.MACHINE:
        ((index, _),) = found.parts
        tighter = [n for n, count in enumerate(by_machine) if gpus <= count < by_machine[index]]
        assert not [n for n in tighter if cluster.machines[n].gpu_model == placement.gpu_models[0]]
    free.take(found)
    free.release(found)
    assert free.place(gpus, level, models) == found


def test_a_rack_is_filled_before_another_is_begun() -> None:
    cluster = parse_cluster("2x2x4")
    free = FreeGpus(cluster, [Allocation(((2, 1),))])
    assert free.place(6) == Allocation(((2, 3), (3, 3))) or free.place(6) == Allocation(((2, 2), (3, 4)))
    assert free.place(8) == Allocation(((0, 4), (1, 4)))
    assert free.place(9) is not None
    assert free.place(9, Level.RACK) is None
    assert free.place(5, Level.MACHINE) is None


def test_the_order_of_models_decides_between_equally_close_places() -> None:
    free = FreeGpus(parse_cluster("1x4:T4,1x4:V100"))
    assert free.place(4, gpu_models=["V100", "T4"]) == Allocation(((1, 4),))
    assert free.place(4, gpu_models=["T4", "V100"]) == Allocation(((0, 4),))
    assert free.place(6) is None, "no job has GPUs of two models"


@pytest.mark.parametrize("gpus", [1, 3, 4, 5, 8, 9, 16])
def test_the_empty_cluster_gives_what_is_called_packed(gpus: int) -> None:
    cluster = parse_cluster("2x2x4")
    found = FreeGpus(cluster).place(gpus)
    assert found is not None
    assert cluster.placement(found) == cluster.packed(gpus)


CLUSTER = parse_cluster("2x2x4")


def state(name: str, gpus: int, allocation: Allocation | None = None) -> JobState:
    return JobState(Job(name, 0, gpus, samples=1, batch=1, step_s=1.0), 0.0, allocation=allocation)


def holds(name: str, *parts: tuple[int, int]) -> JobState:
    allocation = Allocation(parts)
    return state(name, allocation.gpus, allocation)


def test_idle_gpus_before_those_of_others() -> None:
    new, other = state("new", 4), holds("other", (0, 4))
    allocator = PriorityAllocator(CLUSTER, [other], [new, other], 0.0)
    assert allocator.allocate(new, Level.NETWORK) == Allocation(((1, 4),))
    assert allocator.allocate(other, Level.MACHINE) == other.allocation


def test_the_job_of_lowest_priority_on_a_machine_loses_all_that_it_has() -> None:
    new, early, late = state("new", 2), holds("early", (0, 2)), holds("late", (0, 2), (1, 2))
    fixed = holds("fixed", (1, 2), (2, 4), (3, 4))
    fixed.lease_end_s = 10.0
    allocator = PriorityAllocator(CLUSTER, [early, late, fixed], [new, early, late], 0.0)
    assert allocator.allocate(new, Level.MACHINE) is not None
    assert allocator.allocate(early, Level.MACHINE) is not None
    assert allocator.allocate(late, Level.NETWORK) is None


def test_a_job_moves_only_to_gpus_that_are_closer_together() -> None:
    spread, packed = holds("spread", (0, 2), (1, 2)), holds("packed", (2, 4))
    allocator = PriorityAllocator(CLUSTER, [spread, packed], [spread, packed], 0.0)
    assert allocator.allocate(spread, Level.NETWORK) == Allocation(((0, 4),))
    assert allocator.allocate(packed, Level.NETWORK) == packed.allocation


def test_what_is_too_far_apart_is_not_kept() -> None:
    spread = holds("spread", (0, 2), (1, 2))
    busy = [holds("x", (0, 2)), holds("y", (1, 2)), holds("z", (2, 4), (3, 4))]
    for each in busy:
        each.lease_end_s = 10.0
    assert PriorityAllocator(CLUSTER, [spread, *busy], [spread], 0.0).allocate(spread, Level.MACHINE) is None
    assert PriorityAllocator(CLUSTER, [spread, *busy], [spread], 0.0).allocate(spread, Level.RACK) == spread.allocation


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Level), st.booleans(), st.booleans()), max_size=12))
def test_gpus_are_given_once_and_protected_ones_never(jobs: list[tuple[int, Level, bool, bool]]) -> None:
    free = FreeGpus(CLUSTER)
    in_order, running, levels = [], [], {}
    for number, (gpus, level, runs, is_protected) in enumerate(jobs):
        each = state(f"{number}", gpus, free.place(gpus) if runs else None)
        levels[each.job.job_id] = level
        if each.allocation is not None:
            free.take(each.allocation)
            running.append(each)
            each.lease_end_s = 10.0 if is_protected else 0.0
        if each.allocation is None or not is_protected:
            in_order.append(each)
    allocator = PriorityAllocator(CLUSTER, running, in_order, 0.0)
    left = [machine.gpus for machine in CLUSTER.machines]
    given = [each.allocation for each in running if each.lease_end_s]
    for each in in_order:
        wanted = allocator.allocate(each, levels[each.job.job_id])
        if wanted is not None:
            assert wanted.gpus == each.job.gpus
            assert allocator.level(wanted) <= levels[each.job.job_id]
            assert allocator.level(wanted) == CLUSTER.placement(wanted).level
        given.append(wanted)
    for allocation in given:
        for index, gpus in allocation.parts if allocation is not None else ():
            left[index] -= gpus
    assert min(left) >= 0
