"""Which links hold for a machine: its own cluster's, another machine's with the same GPU, or general ones."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.instance_catalog import load
from ddlprof.recommender.communication.coefficients import shipped
from ddlprof.recommender.communication.exposed import PARAMETERS, Link, Load, placing_of, reduce_s
from ddlprof.recommender.target import Machine, Target, machine_of

LOAD = Load(1.0, 1.0, 1.0, 500e6, 100)


def machine(**described: object) -> Machine:
    return machine_of(Target(**described), load())  # type: ignore[arg-type]


@pytest.mark.parametrize("gbps", [0.1, 1, 5, 10, 25, 49])
@pytest.mark.parametrize("gpu", ["T4", "V100", "A100", "RTX 2080 Ti"])
def test_a_slower_network_adds_its_bytes_over_the_line_rate(gpu: str, gbps: float) -> None:
    fitted, slower = (shipped().of(machine(gpu_model=gpu, network_gbps=each)).links.inter.gb_s for each in (50, gbps))
    assert 1 / slower - 1 / fitted == pytest.approx(8 / gbps - 8 / 50, rel=1e-6, abs=0.3)  # 50: no faster than inside
    assert slower < gbps / 8


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
