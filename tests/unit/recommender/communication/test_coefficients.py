"""Which links hold for a machine: its own cluster's, another machine's with the same GPU, or general ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ddlprof.instance_catalog import load
from ddlprof.recommender.communication.coefficients import shipped, with_buckets
from ddlprof.recommender.communication.exposed import PARAMETERS, Link, Load, placing_of, reduce_s
from ddlprof.recommender.target import Machine, Target, machine_from_type, machine_of

LOAD = Load(1.0, 1.0, 1.0, 500e6, 100)


def machine(**described: object) -> Machine:
    return machine_of(Target(**described), load())  # type: ignore[arg-type]


def bandwidth(place: Machine) -> float:
    return shipped().of(place).links.intra.gb_s


def test_a_gpu_measured_in_one_machine_is_half_way_to_the_general_links_in_another() -> None:
    same = machine(gpu_model="RTX 2080 Ti", interconnect="PCIe3", network_gbps=50)
    other = machine(gpu_model="RTX 2080 Ti", interconnect="PCIe3", network_gbps=100)
    unknown = machine(gpu_model="RTX A6000", interconnect="PCIe3", network_gbps=100)
    assert bandwidth(other) == pytest.approx(math.sqrt(bandwidth(same) * bandwidth(unknown)))
    assert shipped().of(other).prior.sd[0] > shipped().of(same).prior.sd[0]


def every_machine() -> Iterator[Machine]:
    """Every machine of the catalogue with several whole GPUs."""
    catalog = load()
    for instance in catalog.instances:
        if instance.gpus and instance.gpus > 1:
            yield machine_from_type(instance, catalog)


def test_links_that_were_not_measured_stay_within_the_bounds_of_physics() -> None:
    """Not faster than the line, and not three times slower than collectives are over NVLink."""
    for each in every_machine():
        found = shipped().of(each)
        if each.link_gb_s:
            assert found.links.intra.gb_s <= each.link_gb_s
        if each.network_gbps:
            assert found.links.inter.gb_s <= each.network_gbps / 8
        if each.link == "nvlink" and each.link_gb_s:
            reached = with_buckets(0.63 * each.link_gb_s, 28e-6)
            assert found.links.intra.gb_s >= reached / 3, each.name


@pytest.mark.parametrize("gbps", [0.1, 1, 5, 10, 25, 49])
@pytest.mark.parametrize("gpu", ["T4", "V100", "A100", "RTX 2080 Ti"])
def test_a_slower_network_adds_its_bytes_over_the_line_rate(gpu: str, gbps: float) -> None:
    fitted, slower = (shipped().of(machine(gpu_model=gpu, network_gbps=each)).links.inter.gb_s for each in (50, gbps))
    assert 1 / slower - 1 / fitted == pytest.approx(8 / gbps - 8 / 50, rel=1e-6, abs=0.3)  # 50: no faster than inside
    assert slower < gbps / 8


def test_a_slower_flow_adds_its_bytes_over_the_line_rate() -> None:
    place = machine(instance_type="g4dn.12xlarge")
    fitted, slower = (shipped().of(replace(place, flow_gbps=each)).links.inter.gb_s for each in (10, 5))
    assert 1 / slower - 1 / fitted == pytest.approx(8 / 5 - 8 / 10)


@pytest.mark.parametrize(("gpus", "times"), [(4, 1.0), (8, 1.0), (16, 2.0)])
def test_more_than_eight_gpus_share_pcie(gpus: int, times: float) -> None:
    links = shipped().of(machine(instance_type="p2.16xlarge")).links
    alone = links._replace(intra=Link(links.intra.gb_s, 0.0, 0.0))
    shared = links._replace(intra=Link(links.intra.gb_s, 0.0, 0.0, full_speed_gpus=links.intra.full_speed_gpus))
    z = np.zeros(len(PARAMETERS))
    cost = [float(reduce_s(z, some, placing_of((gpus,)), LOAD)) for some in (alone, shared)]
    assert cost[1] / cost[0] == pytest.approx(times)


def test_nvlink_is_not_shared() -> None:
    assert shipped().of(machine(instance_type="p5.48xlarge")).links.intra.full_speed_gpus == 0


def test_twice_as_fast_links_are_less_than_twice_as_fast_for_buckets() -> None:
    b200, h100 = (bandwidth(machine(instance_type=name)) for name in ("p6-b200.48xlarge", "p5.48xlarge"))
    assert 1.3 < b200 / h100 < 2.0
    assert with_buckets(100.0, 0.0) == pytest.approx(100.0)
    assert with_buckets(1e9, 34e-6) == pytest.approx(0.025 / 34e-6, rel=1e-3)
