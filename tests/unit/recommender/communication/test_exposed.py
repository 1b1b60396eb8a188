"""The form of communication, term by term, with numbers that are easy to multiply."""

from __future__ import annotations

import numpy as np
import pytest

from ddlprof.recommender.communication.exposed import PARAMETERS, Link, Links, Load, placing_of, reduce_s, step_s

BYTES, TENSORS = 1e9, 10
BARE = Link(gb_s=2.0, launch_s=0.0, launch_growth=0.0)
"""A gigabyte takes half a second."""
LAUNCHING = Link(gb_s=1e12, launch_s=0.01, launch_growth=0.5)
"""Ten tensors take a tenth of a second between two GPUs, and half as much more with each doubling."""
PLAIN = np.zeros(len(PARAMETERS))
LOAD = Load(compute_s=10.0, hiding_s=0.0, reference_s=10.0, bytes=BYTES, tensors=TENSORS)


def reduction_s(placement: tuple[int, ...], intra: Link = BARE, inter: Link = BARE, **parameters: float) -> float:
    """Without the ring's factor."""
    z = PLAIN.copy()
    for name, value in parameters.items():
        z[int(name[1:])] = value
    at = placing_of(placement)
    return float(reduce_s(z, Links(intra, inter), at, LOAD) / (2 * (at.gpus - 1) / at.gpus))


def test_a_ring_sends_all_but_one_part_twice() -> None:
    times = [float(reduce_s(PLAIN, Links(BARE, BARE), placing_of((gpus,)), LOAD)) for gpus in (2, 4, 8)]
    assert times == pytest.approx([0.5, 0.75, 0.875])


def test_one_node_has_its_own_links_and_its_own_price() -> None:
    slow = Link(gb_s=0.5, launch_s=0.0, launch_growth=0.0)
    for placement, expected in (((2,), 0.5), ((4,), 0.5), ((1, 1), 2.0), ((2, 2), 2.0)):
        assert reduction_s(placement, inter=slow) == pytest.approx(expected, rel=0.01)
    double = float(np.log(2.0))
    assert reduction_s((2,), z0=double, z1=0.0) == pytest.approx(1.0)
    assert reduction_s((2,), z0=0.0, z1=double) == pytest.approx(0.5)
    assert reduction_s((1, 1), z0=double, z1=0.0) == pytest.approx(0.5)
    assert reduction_s((1, 1), z0=0.0, z1=double) == pytest.approx(1.0)


def test_a_reduction_over_machines_passes_the_links_inside_them_too() -> None:
    fast = Link(gb_s=200.0, launch_s=0.0, launch_growth=0.0)
    assert reduction_s((1, 1), inter=fast) == pytest.approx(0.005)
    assert reduction_s((4, 4), inter=fast) == pytest.approx(reduction_s((4,)), rel=0.01)
    assert reduction_s((4, 4), inter=fast) > reduction_s((4,))
    assert reduction_s((4, 4)) == pytest.approx(0.5 * 2**0.25)


def test_a_full_machine_may_have_its_own_price() -> None:
    double = float(np.log(2.0))
    times = [reduction_s((gpus,), z8=double) for gpus in (2, 8)]
    assert times == pytest.approx([0.5 * 2 ** (1 / 3), 1.0])


def test_over_tcp_launches_grow_with_every_hop() -> None:
    hops = Link(gb_s=1e12, launch_s=0.01, launch_growth=0.0, hop_growth=0.5)
    assert [reduction_s((1,) * nodes, inter=hops) for nodes in (2, 4, 8)] == pytest.approx([0.1, 0.15, 0.25])
    inside_s = reduction_s((4, 4), inter=hops, intra=Link(1e12, 0.0, 0.0))
    assert inside_s == pytest.approx(0.1)  # hops inside a machine are short


def test_launches_grow_with_each_doubling_of_the_gpus() -> None:
    times = [reduction_s((gpus,), intra=LAUNCHING) for gpus in (2, 4, 8)]
    assert times == pytest.approx([0.1, 0.15, 0.2])


@pytest.mark.parametrize(("line_share", "three_nodes_s"), [(1.0, 0.25), (0.5, 0.375)])
def test_more_nodes_have_more_flows(line_share: float, three_nodes_s: float) -> None:
    flows = Link(2.0, 0.0, 0.0, line_share=line_share, flows=2.0)
    times = [reduction_s((1,) * nodes, inter=flows) for nodes in (2, 3, 4)]
    assert times == pytest.approx([0.5, three_nodes_s, three_nodes_s])


def test_gpus_beyond_the_lanes_of_their_host_share_them() -> None:
    lanes = Link(2.0, 0.0, 0.0, full_speed_gpus=4)
    assert [reduction_s((gpus,), intra=lanes) for gpus in (2, 4, 8)] == pytest.approx([0.5, 0.5, 1.0])


def test_what_sharing_a_host_costs_lies_between_one_gpu_and_eight() -> None:
    z = PLAIN.copy()
    z[3:6] = -50.0  # no last bucket, and nothing lost to uneven ranks and neighbours
    z[6], z[7] = 0.1, 0.4
    rest = [float(step_s(z, Links(BARE, BARE), placing_of((gpus,)), LOAD)[0]) for gpus in (1, 2, 8)]
    assert rest == pytest.approx([11.0, 12.0, 14.0])
    z[6] = z[7] = -0.9
    assert float(step_s(z, Links(BARE, BARE), placing_of((2,)), LOAD)[0]) == pytest.approx(3.0)
