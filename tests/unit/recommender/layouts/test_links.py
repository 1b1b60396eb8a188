"""Where ranks of a dimension sit, and what collectives among them take."""

from __future__ import annotations

import pytest

from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.links import DimensionGroup, collective_s, fabric_of, group, send_s
from ddlprof.recommender.target import Target, default_catalog, machine_of
from tests.unit.recommender.layouts.made_up import FABRIC

FITTED = shipped_layouts().common.collectives
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def seconds(kind: str, size: float, at: DimensionGroup, share: float = 0.7) -> float:
    return collective_s(kind, size, at, FABRIC, FITTED, share, hop_s=3e-5)


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        (8, 1, DimensionGroup(8, 1, 8)),
        (16, 1, DimensionGroup(16, 2, 8)),
        (4, 4, DimensionGroup(4, 2, 2)),
        (4, 8, DimensionGroup(4, 4, 1)),
        (2, 64, DimensionGroup(2, 2, 1)),
        (1, 1, DimensionGroup(1, 1, 1)),
    ],
)
def test_ranks_fill_one_domain_after_another(ranks: int, stride: int, expected: DimensionGroup) -> None:
    assert group(ranks, stride, 8) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_and_more_domains_take_longer(kind: str) -> None:
    assert seconds(kind, 2e8, DimensionGroup(8, 1, 8)) > seconds(kind, 1e8, DimensionGroup(8, 1, 8))
    assert seconds(kind, 1e6, DimensionGroup(64, 64, 1)) > seconds(kind, 1e6, DimensionGroup(8, 8, 1))
    assert seconds(kind, 1e9, DimensionGroup(1, 1, 1)) == 0.0
    assert seconds(kind, 0.0, DimensionGroup(8, 1, 8)) == 0.0


def test_a_message_crosses_the_network_at_its_speed() -> None:
    near, far = (send_s(1e8, crosses, FABRIC, 0.7, 1e-4) for crosses in (False, True))
    assert near == pytest.approx(1e-4 + 1e8 / (0.7 * 450e9))
    assert far == pytest.approx(1e-4 + 1e8 / (0.7 * 50e9))


def test_racks_of_superchips_are_one_domain() -> None:
    def fabric(**target: object):  # type: ignore[no-untyped-def]
        return fabric_of(machine_of(Target(**target), default_catalog()), 4)  # type: ignore[arg-type]

    assert fabric(gpu_model="GB200").domain == 72
    assert fabric(gpu_model="GB200").link_gb_s == 900.0
    assert fabric(gpu_model="A100-80GB", network_gbps=800.0)[::2] == (4, 25.0)
    assert fabric(gpu_model="A100-80GB").network_gb_s == 50.0
    assert fabric(gpu_model="L4").network_gb_s == pytest.approx(25 / 8 / 4)
