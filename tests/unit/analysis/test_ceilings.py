"""Ceilings: bounds that hold for steps whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.ceilings import CEILINGS, Ceiling, ceilings
from ddlprof.analysis.summary import RankTimes
from ddlprof.model.records import MISSING

TRANSFER = 100


def job(data: list[list[int]], compute: list[list[int]], transfer: int = TRANSFER) -> list[RankTimes]:
    """Ranks (rows) that wait for the last one before they exchange their gradients at the end of each step."""
    own = np.array(data) + np.array(compute)
    wait = own.max(axis=0) - own
    steps = np.arange(own.shape[1])
    return [
        RankTimes(
            steps,
            {
                "step": own[rank] + wait[rank] + transfer, "compute": np.array(compute)[rank],
                "data": np.array(data)[rank], "h2d": steps * 0, "comm": wait[rank] + transfer,
                "interconnect": steps * 0, "network": steps * 0 + transfer, "straggler": wait[rank],
                "bubble": steps * 0, "other": steps * 0,
            },
            np.ones(len(steps), dtype=bool),
        )
        for rank in range(len(own))
    ]  # fmt: skip


def named(found: list[Ceiling]) -> dict[str, Ceiling]:
    return {each.name: each for each in found}


def mean(ranks: list[RankTimes]) -> float:
    return float(np.concatenate([rank.times["step"] for rank in ranks]).mean()) / 1e9


def of(ranks: list[RankTimes]) -> dict[str, Ceiling]:
    return named(ceilings(ranks, mean(ranks)))


MATRIX = st.integers(1, 4).flatmap(
    lambda ranks: st.integers(1, 6).flatmap(
        lambda steps: st.tuples(
            *(
                st.lists(
                    st.lists(st.integers(low, 1000), min_size=steps, max_size=steps), min_size=ranks, max_size=ranks
                )
                for low in (0, 1)
            )
        )
    )
)


@given(MATRIX)
def test_a_perfect_loader_gains_no_more_than_is_said(drawn: tuple[list[list[int]], list[list[int]]]) -> None:
    data, compute = drawn
    ranks = job(data, compute)
    without = job([[0] * len(row) for row in data], compute)
    assert of(ranks)["data"].step_s <= mean(without) * (1 + 1e-9)


@given(MATRIX)
def test_no_communication_gains_no_more_than_is_said(drawn: tuple[list[list[int]], list[list[int]]]) -> None:
    ranks = job(*drawn)
    assert of(ranks)["comm"].step_s <= mean(job(*drawn, transfer=0)) * (1 + 1e-9)
    assert of(ranks)["network"].step_s <= mean(job(*drawn, transfer=0)) * (1 + 1e-9)


@given(MATRIX, st.randoms(use_true_random=False))
def test_bounds_are_within_the_step_and_ranks_have_no_order(
    drawn: tuple[list[list[int]], list[list[int]]], random: object
) -> None:
    ranks = job(*drawn)
    found = of(ranks)
    for each in found.values():
        assert -1e-15 <= each.gain_s <= mean(ranks) * (1 + 1e-9)
        assert each.step_s + each.gain_s == pytest.approx(mean(ranks))
    random.shuffle(ranks)  # type: ignore[attr-defined]
    assert {name: each.gain_s for name, each in of(ranks).items()} == pytest.approx(
        {name: each.gain_s for name, each in found.items()}
    )


def test_what_one_rank_loses_to_its_loader_all_of_them_gain() -> None:
    """The mean of data is 25; without it the others need not wait for the rank that has all of it."""
    ranks = job([[0, 0], [0, 0], [0, 0], [100, 100]], [[50, 50]] * 4)
    assert of(ranks)["data"].gain_s == pytest.approx(100e-9)
    assert of(ranks)["straggler"].gain_s == pytest.approx(100e-9)


def test_one_of_two_ranks_that_is_late_costs_all_that_the_other_waits() -> None:
    ranks = job([[0, 0], [0, 0]], [[50, 50], [80, 90]])
    assert of(ranks)["straggler"].gain_s == pytest.approx(35e-9)
    by_turns = job([[0, 0], [0, 0]], [[50, 90], [80, 50]])
    assert of(by_turns)["straggler"].gain_s == pytest.approx(35e-9)


def test_what_was_not_measured_has_no_ceiling() -> None:
    ranks = job([[10, 30], [5, 5]], [[50, 50], [50, 50]])
    for rank in ranks:
        rank.times["data"][:] = MISSING
    assert "data" not in of(ranks)
    for rank in ranks:
        for name in ("comm", "network", "interconnect", "straggler"):
            rank.times[name][:] = MISSING
    assert ceilings(ranks, 1.0) == []
    assert ceilings([], 1.0) == []


def test_ranks_that_never_meet_gain_each_for_itself() -> None:
    ranks = job([[10, 30], [0, 0]], [[50, 50], [90, 90]], transfer=0)
    for rank in ranks:
        rank.times["step"] = rank.times["step"] - rank.times["comm"]
        rank.times["comm"][:] = rank.times["straggler"][:] = 0
    assert of(ranks)["data"].gain_s == pytest.approx(10e-9)


def test_every_ceiling_is_a_class() -> None:
    assert set(CEILINGS) <= set(job([[1]], [[1]])[0].times)
