"""Places on half-full clusters: as close together as they can be, and the tightest of these."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.cluster.machines import Allocation, Cluster, Level, parse_cluster
from ddlprof.cluster.packing import FreeGpus

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
    spread = cluster.spread(found)
    assert (found.gpus, spread.level, len(spread.gpu_models)) == (gpus, expected, 1)
    assert [index for index, _ in found.parts] == sorted({index for index, _ in found.parts})
    assert all(0 < count <= by_machine[index] for index, count in found.parts)
    assert free.fits(found)
    assert free.by_machine == by_machine, "it is not taken yet"
    if expected == Level.MACHINE:
        ((index, _),) = found.parts
        tighter = [n for n, count in enumerate(by_machine) if gpus <= count < by_machine[index]]
        assert not [n for n in tighter if cluster.machines[n].gpu_model == spread.gpu_models[0]]
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
    assert cluster.spread(found) == cluster.packed(gpus)
