"""Reading the calibration ladder."""

from __future__ import annotations

import pytest

from ddlprof.analysis.calibration import Ladder, Ladders
from ddlprof.model.records import Calibration, CollectiveShape

RUNGS = [Calibration(2, 1000, 100_000), Calibration(2, 11_000, 200_000), Calibration(2, 21_000, 400_000)]


def all_reduce(size: int, ranks: int = 2, op: str = "allreduce") -> CollectiveShape:
    return CollectiveShape("0", op, size, ranks)


@pytest.mark.parametrize(
    ("size", "us"), [(1000, 100), (6000, 150), (11_000, 200), (21_000, 400), (31_000, 600), (10, 100)]
)
def test_between_and_beyond_the_rungs(size: int, us: float) -> None:
    assert Ladder(RUNGS).transfer_us(all_reduce(size)) == pytest.approx(us)


def test_more_ranks_need_more_rounds_and_move_more() -> None:
    # 4 ranks: 6 rounds for 2, and 2 * 3/4 of the bytes for 2 * 1/2
    assert Ladder(RUNGS).transfer_us(all_reduce(11_000, ranks=4)) == pytest.approx(100 * 3 + 100 * 1.5)


def test_a_gather_is_half_an_all_reduce() -> None:
    assert Ladder(RUNGS).transfer_us(all_reduce(11_000, op="allgather_base")) == pytest.approx(100)


def test_a_slower_smaller_rung_is_noise() -> None:
    noisy = [Calibration(2, 1000, 100_000), Calibration(2, 11_000, 50_000)]
    assert Ladder(noisy).transfer_us(all_reduce(1000)) == pytest.approx(50)


def test_a_single_rung() -> None:
    assert Ladder(RUNGS[:1]).transfer_us(all_reduce(9_000_000)) == pytest.approx(100)


def test_an_operation_with_a_ladder_of_its_own_needs_no_scaling() -> None:
    own = Calibration(2, 11_000, 700_000, op="reducescatter")
    ladders = Ladders([*RUNGS, own])
    assert ladders.transfer_us(all_reduce(11_000)) == pytest.approx(200)
    assert ladders.transfer_us(all_reduce(11_000, op="reduce_scatter_base")) == pytest.approx(700)
    assert ladders.transfer_us(all_reduce(11_000, op="alltoall_base")) == pytest.approx(100)


def test_without_a_ladder_of_all_reduces_others_are_not_told() -> None:
    ladders = Ladders([Calibration(2, 1024, 20_000, "allgather")])
    assert ladders.transfer_us(CollectiveShape("0", "broadcast", 1024, 2)) is None
    assert ladders.transfer_us(CollectiveShape("0", "allgather", 1024, 2)) is not None


def test_a_size_that_was_timed_twice() -> None:
    twice = [*RUNGS, *RUNGS, Calibration(2, 21_000, 500_000)]
    assert Ladder(twice).transfer_us(all_reduce(31_000)) == pytest.approx(600)


@pytest.mark.parametrize("ranks", [0, 1])
def test_rungs_of_nobody_are_damaged(ranks: int) -> None:
    nobody = Calibration(ranks, 1000, 1)
    assert Ladders([nobody]).transfer_us(all_reduce(1000)) is None
    assert Ladders([nobody, *RUNGS]).transfer_us(all_reduce(1000)) == pytest.approx(100)
